// What a device could compute at most, by its data sheet: what MFU is a share of.
#pragma once

#include <optional>

#include "core/device.h"
#include "core/dtype.h"

namespace lt2 {

// FLOP/s of dense matrix products in bf16 on tensor cores, or in plain fp32; none for a device that
// is not in the table.
std::optional<double> PeakFlops(Device device, DType dtype);

// Model FLOPs utilisation of one device; none where its peak is not known.
inline std::optional<double> Mfu(Device device, DType dtype, double model_flops_per_second) {
  const std::optional<double> peak = PeakFlops(device, dtype);
  if (!peak) return std::nullopt;
  return model_flops_per_second / *peak;
}

}  // namespace lt2
