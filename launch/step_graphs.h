// The parts of a training step, run as they come or recorded once and repeated.
//
// On a GPU with graphs the first step runs as it comes: libraries choose algorithms, buffers grow.
// The next one records every part as a CUDA graph, and from then on a part is one launch. What a
// part allocates lies in memory set apart, where a recorded part finds it again. Steps that are not
// repeated (diagnostics, evaluation) run as they come, in the same memory.
#pragma once

#include <functional>
#include <map>
#include <memory>

#include "core/allocator.h"
#include "core/cuda.h"

namespace lt2 {

class StepGraphs {
 public:
  // on: only for a GPU. Off, parts run as they come, in the device's common memory.
  StepGraphs(bool on, Device device);

  bool on() const { return pool_ != nullptr; }
  // Memory for a step's parts, taken now so that no step grows it.
  void Reserve(int64_t bytes);

  // may_repeat: this step's parts do what those of others do.
  void BeginStep(bool may_repeat);
  // One part of the step; the same number means the same work, on other contents of its inputs.
  void Run(int part, const std::function<void()>& work);
  void EndStep();
  // Work of its own between steps.
  void RunApart(const std::function<void()>& work);

  // Inside `work`: it is being recorded and does not run yet.
  bool recording() const { return mode_ == Mode::kRecord; }
  bool repeating() const { return mode_ == Mode::kRepeat; }

 private:
  enum class Mode { kDirect, kRecord, kRepeat };
  void RunInPool(const std::function<void()>& work);

  const Device device_;
  std::unique_ptr<MemoryPool> pool_;
  std::map<int, std::unique_ptr<cuda::Graph>> graphs_;
  Mode mode_ = Mode::kDirect;
  bool warm_ = false;  // a whole step has run
  bool recorded_ = false;
};

}  // namespace lt2
