// The flag --device, which every verb that computes has.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "core/device.h"
#include "tools/verb.h"

namespace lt2 {

void AddDeviceFlag(CLI::App& app, std::string* device);

// "auto" is the CPU in a build without CUDA kernels; "cuda" is InvalidArgument there.
absl::StatusOr<Device> ChooseDevice(const std::string& name);

}  // namespace lt2
