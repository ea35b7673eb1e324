// What `lt2 bench op` can time: every operator's case, and the whole layer of every mixer.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/device.h"
#include "core/dtype.h"
#include "core/tensor.h"

namespace lt2 {

class BenchTarget {
 public:
  virtual ~BenchTarget() = default;
  virtual const std::string& name() const = 0;  // sizes and options
  // Makes inputs on the stream's device, and runs once.
  virtual void Prepare(Stream& stream) = 0;
  // Forward as in training, and backward after it if asked for and there is one; `between` is
  // called between the two. Copies nothing from or to the host unless waits().
  // Says whether there was a backward.
  virtual bool Run(bool backward, const std::function<void()>& between = {}) = 0;
  virtual bool waits() const { return false; }
};

// Normal numbers on the device, of which a million come again and again.
Tensor BenchNumbers(const std::string& name, const Shape& shape, DType dtype, Device device);

// Operators in the order of cases.def, then mixer.KIND in the order of mixers.def.
std::vector<std::string> BenchTargetNames();
// `op`: one of the names; of a model's own size on a GPU in bfloat16, else smaller. A mixer's layer
// is that of the preset lt2-0.6b-KIND, at half its width where it is to be smaller.
absl::StatusOr<std::unique_ptr<BenchTarget>> MakeBenchTarget(const std::string& op, Device device,
                                                             DType dtype);

}  // namespace lt2
