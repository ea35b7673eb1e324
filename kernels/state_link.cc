#include "kernels/state_link.h"

#include "core/allocator.h"

namespace lt2 {

const Tensor& StateLink::Unit(int64_t heads, int64_t k, DType dtype, Device device) {
  const Shape shape = {1, heads, k, k};
  for (const Tensor& made : units_) {
    if (made.shape() == shape && made.dtype() == dtype && made.device() == device) return made;
  }
  std::vector<double> unit(shape.size(), 0.0);
  for (int64_t i = 0; i < heads * k; ++i) unit[i * k + i % k] = 1;
  const PoolScope common(nullptr);  // it outlives the step
  if (device.backend == Backend::kMeta)
    return units_.emplace_back(Tensor::Empty(shape, dtype, device));
  return units_.emplace_back(Tensor::FromHost(unit, shape, dtype, device));
}

}  // namespace lt2
