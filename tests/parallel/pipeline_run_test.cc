#include "parallel/pipeline_run.h"

#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <mutex>
#include <thread>

#include "core/strings.h"
#include "core/trace.h"
#include "parallel/pipeline_simulation.h"
#include "parallel/thread_communicator.h"

namespace lt2 {
namespace {

// A stage that multiplies by its weight, 2 + stage, and notes the weights' gradients: of a chain of
// products every gradient is known.
class Multiplier : public PipelineStage {
 public:
  Multiplier(int stage, int loops, double sleep) : stage_(stage), loops_(loops), sleep_(sleep) {}

  Tensor NewMessage() override { return Tensor::Empty({1}, DType::kF64, {}); }
  Tensor Forward(int mb, int loop, const Tensor& x) override {
    const double in = x.defined() ? x.ToDoubles()[0] : 1 + mb;
    EXPECT_EQ(x.defined(), stage_ > 0 || loop > 0);
    inputs_[{mb, loop}] = in;
    return Done(in * weight());
  }
  Tensor Head(int mb, const Tensor& x) override {
    outputs[mb] = x.ToDoubles()[0];
    return Tensor::FromHost(std::vector<double>{1.0}, {1}, DType::kF64, {});
  }
  Tensor BackwardInput(int mb, int loop, const Tensor& dy) override {
    gradients_[{mb, loop}] = dy.ToDoubles()[0];
    const Tensor dx = Done(dy.ToDoubles()[0] * weight());
    return stage_ == 0 && loop == 0 ? Tensor() : dx;
  }
  void BackwardWeight(int mb, int loop) override {
    Done(0);
    weight_gradient += inputs_.at({mb, loop}) * gradients_.at({mb, loop});
    inputs_.erase({mb, loop});
  }

  double weight() const { return 2 + stage_; }
  std::map<int, double> outputs;
  double weight_gradient = 0;

 private:
  Tensor Done(double value) {
    if (sleep_ > 0) std::this_thread::sleep_for(std::chrono::duration<double>(sleep_));
    return Tensor::FromHost(std::vector<double>{value}, {1}, DType::kF64, {});
  }

  const int stage_, loops_;
  const double sleep_;
  std::map<std::pair<int, int>, double> inputs_, gradients_;
};

TEST(PipelineRun, IsTheChainOfStagesAndItsGradient) {
  for (const Pipeline pipeline : {Pipeline::kRing, Pipeline::kRingZb}) {
    for (const int P : {1, 2, 3, 4}) {
      for (const int T : {1, 2, 4}) {
        for (const int m : {P, P + 1, 2 * P, 2 * P + P / 2 + 1}) {
          SCOPED_TRACE(StrCat(P, " stages, ", T, " loops, ", m, " micro-batches"));
          const PipelinePlan plan = MakePipelinePlan({pipeline, P, T, m});
          double all = 1;
          for (int r = 0; r < P; ++r) all *= std::pow(2 + r, T);
          RunRanks(P, [&](Communicator& pp) {
            Multiplier stage(pp.rank(), T, 0);
            RunPipeline(plan, pp.rank(), MakePipelineLinks(pp), stage);
            double inputs = 0;
            for (int mb = 0; mb < m; ++mb) inputs += 1 + mb;
            EXPECT_DOUBLE_EQ(stage.weight_gradient, T * all / stage.weight() * inputs);
            EXPECT_EQ(static_cast<int>(stage.outputs.size()), pp.rank() == 0 ? m : 0);
            for (const auto& [mb, y] : stage.outputs) EXPECT_DOUBLE_EQ(y, all * (1 + mb));
          });
        }
      }
    }
  }
}

// With jobs that sleep the time is the simulated one; what differs is the waking of threads, so the
// best of some runs counts.
TEST(PipelineRun, TakesTheSimulatedTime) {
  constexpr double kJob = 0.02;
  for (const Pipeline pipeline : {Pipeline::kRing, Pipeline::kRingZb}) {
    const PipelinePlan plan = MakePipelinePlan({pipeline, 4, 2, 6});
    const double want = Simulate(plan, {}).makespan * kJob;
    double best = 1e9;
    for (int attempt = 0; attempt < 5 && best > 1.05 * want; ++attempt)
      RunRanks(4, [&](Communicator& pp) {
        const PipelineLinks links = MakePipelineLinks(pp);
        Multiplier stage(pp.rank(), 2, kJob);
        pp.Barrier();
        const double begun = MonotonicSeconds();
        RunPipeline(plan, pp.rank(), links, stage);
        pp.Barrier();
        if (pp.rank() == 0) best = std::min(best, MonotonicSeconds() - begun);
      });
    EXPECT_GE(best, want);
    EXPECT_LT(best, 1.05 * want);
  }
}

}  // namespace
}  // namespace lt2
