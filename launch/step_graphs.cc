#include "launch/step_graphs.h"

#include "core/check.h"
#include "core/log.h"
#include "core/strings.h"
#include "core/trace.h"
#ifdef LT2_HAS_CUDA
#include "kernels/cuda/release_scratch.h"
#endif

namespace lt2 {
namespace {

// Runs what allocates from the pool, and leaves nothing of the kernels' own there.
void RunIn(const MemoryPool& pool, const std::function<void()>& work) {
  const PoolScope scope(&pool);
  work();
#ifdef LT2_HAS_CUDA
  cuda::ReleaseScratch();
#endif
}

}  // namespace

StepGraphs::StepGraphs(bool on, Device device) : device_(device) {
  CHECK(!on || device.backend == Backend::kCuda) << "graphs on " << device;
  if (on) pool_ = std::make_unique<MemoryPool>(device);
}

void StepGraphs::Reserve(int64_t bytes) {
  if (bytes <= 0) return;
  CachingAllocator& common = CachingAllocator::Of(device_);
  if (!pool_) return common.Reserve(bytes);
  common.Trim();  // what making the parameters has left behind
  pool_->Reserve(bytes);
}

void StepGraphs::BeginStep(bool may_repeat) {
  mode_ = Mode::kDirect;
  if (!pool_ || !warm_ || !may_repeat) return;
  mode_ = recorded_ ? Mode::kRepeat : Mode::kRecord;
}

void StepGraphs::Run(int part, const std::function<void()>& work) {
  if (!pool_) return work();
  switch (mode_) {
    case Mode::kDirect:
      return RunInPool(work);
    case Mode::kRecord: {
      // A part that comes several times in a step is recorded as often: the host's side of it, the
      // count of uses, belongs to every time.
      auto graph = std::make_unique<cuda::Graph>();
      RunIn(*pool_, [&] {
        graph->BeginCapture();
        work();
        graph->EndCapture();
      });
      graph->Launch();
      graphs_[part] = std::move(graph);
      return;
    }
    case Mode::kRepeat:
      const TraceRange range("repeat");
      return graphs_.at(part)->Launch();
  }
}

void StepGraphs::EndStep() {
  warm_ = true;
  if (mode_ == Mode::kRecord) {
    recorded_ = true;
    int64_t nodes = 0;
    for (const auto& [part, graph] : graphs_) nodes += graph->nodes();
    LogDebug(StrCat("recorded the step: ", graphs_.size(), " graphs of ", nodes, " nodes"));
  }
  mode_ = Mode::kDirect;
}

void StepGraphs::RunApart(const std::function<void()>& work) {
  CHECK(mode_ == Mode::kDirect) << "inside a recorded step";
  pool_ ? RunInPool(work) : work();
}

// Once parts are recorded, something made here that stays may lie where they write: then they are
// recorded anew.
void StepGraphs::RunInPool(const std::function<void()>& work) {
  const int64_t live = pool_->stats().live;
  RunIn(*pool_, work);
  if (!recorded_ || pool_->stats().live == live) return;
  recorded_ = false;
  graphs_.clear();
}

}  // namespace lt2
