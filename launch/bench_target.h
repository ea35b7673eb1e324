// What `lt2 bench op` can time: every operator's case, and the whole layer of every mixer.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/device.h"
#include "core/dtype.h"

namespace lt2 {

class BenchTarget {
 public:
  struct Seconds {
    double forward = 0, backward = 0;
  };
  virtual ~BenchTarget() = default;
  virtual const std::string& name() const = 0;  // sizes and options
  // Forward and backward once; on kMeta they are counted and take no time. Inputs are made before
  // the clock starts.
  virtual Seconds Run(Stream& stream) = 0;
};

// Operators in the order of cases.def, then mixer.KIND in the order of mixers.def.
std::vector<std::string> BenchTargetNames();
// `op`: one of the names. A mixer's layer is that of the preset lt2-0.6b-KIND at half its width.
absl::StatusOr<std::unique_ptr<BenchTarget>> MakeBenchTarget(const std::string& op, DType dtype);

}  // namespace lt2
