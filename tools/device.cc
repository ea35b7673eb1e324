#include "tools/device.h"

namespace lt2 {

void AddDeviceFlag(CLI::App& app, std::string* device) {
  app.add_option("--device", *device, "cpu, cuda or auto")
      ->check(CLI::IsMember({"cpu", "cuda", "auto"}));
}

absl::StatusOr<Device> ChooseDevice(const std::string& name) {
  if (name == "cuda") {
    return absl::InvalidArgumentError(
        "--device cuda: this version has no CUDA kernels yet; use --device cpu");
  }
  return Device{Backend::kCpu};
}

}  // namespace lt2
