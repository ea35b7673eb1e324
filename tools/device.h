// The flag --device, which every verb that computes has.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "core/device.h"
#include "core/dtype.h"
#include "parallel/communicator.h"
#include "tools/verb.h"

namespace lt2 {

void AddDeviceFlag(CLI::App& app, std::string* device);

// "auto" is the first GPU where there is one, else the CPU; "cuda" without one is InvalidArgument.
absl::StatusOr<Device> ChooseDevice(const std::string& name);

// The same for all ranks of `world`, each of which gets a GPU to itself: "auto" is the CPU where
// there are too few, "cuda" is InvalidArgument. `world` then moves what lies on the GPUs too.
// Collective: every rank gets the same status.
absl::StatusOr<Device> ChooseDevice(const std::string& name, std::unique_ptr<Communicator>* world);

// "fp32", "fp64" or "bf16"; InvalidArgument where the device does not compute in it.
absl::StatusOr<DType> ChooseDType(const std::string& name, Device device);

}  // namespace lt2
