// The flag --device, which every verb that computes has.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "core/device.h"
#include "core/dtype.h"
#include "tools/verb.h"

namespace lt2 {

void AddDeviceFlag(CLI::App& app, std::string* device);

// "auto" is the first GPU for one rank where there is one, else the CPU; "cuda" without one is
// InvalidArgument.
absl::StatusOr<Device> ChooseDevice(const std::string& name, int ranks = 1);

// "fp32", "fp64" or "bf16"; InvalidArgument where the device does not compute in it.
absl::StatusOr<DType> ChooseDType(const std::string& name, Device device);

}  // namespace lt2
