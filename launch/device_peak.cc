#include "launch/device_peak.h"

#include <string>

#include "core/cuda.h"

namespace lt2 {
namespace {

struct Peak {
  const char* name;  // part of what the driver calls it; the first that fits counts
  double bf16, fp32;
};
constexpr Peak kPeaks[] = {
    {"H200", 989.4e12, 66.9e12}, {"H100 PCIe", 756e12, 51.2e12}, {"H100 NVL", 835.5e12, 60.3e12},
    {"H100", 989.4e12, 66.9e12}, {"A100", 311.9e12, 19.5e12},
};

}  // namespace

std::optional<double> PeakFlops(Device device, DType dtype) {
  if (device.backend != Backend::kCuda) return std::nullopt;
  thread_local int asked = -1;  // asking takes a millisecond
  thread_local std::string name;
  if (asked != device.index) name = cuda::Describe(asked = device.index);
  for (const Peak& peak : kPeaks) {
    if (name.find(peak.name) != std::string::npos) {
      return dtype == DType::kBF16 ? peak.bf16 : peak.fp32;
    }
  }
  return std::nullopt;
}

}  // namespace lt2
