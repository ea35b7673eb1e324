// Numbers that a mixer computes with and that never change.
#pragma once

#include <vector>

#include "core/allocator.h"
#include "core/tensor.h"

namespace lt2 {

// A tensor of them is made once for each device and kind of number. Not for several threads at
// once: a mixer belongs to one rank.
class Constant {
 public:
  explicit Constant(std::vector<double> values) : values_(std::move(values)) {}
  // In float64 where the run is, else in float32, whatever the run rounds to.
  const Tensor& On(Device device, DType run) {
    const DType dtype = run == DType::kF64 ? DType::kF64 : DType::kF32;
    for (const Tensor& made : made_) {
      if (made.device() == device && made.dtype() == dtype) return made;
    }
    const Shape shape = {static_cast<int64_t>(values_.size())};
    const PoolScope common(nullptr);  // it outlives the step
    return made_.emplace_back(Tensor::FromHost(values_, shape, dtype, device));
  }

 private:
  const std::vector<double> values_;
  std::vector<Tensor> made_;
};

}  // namespace lt2
