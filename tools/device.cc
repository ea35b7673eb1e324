#include "tools/device.h"

#include "absl/strings/str_cat.h"
#include "core/cuda.h"

namespace lt2 {

void AddDeviceFlag(CLI::App& app, std::string* device) {
  app.add_option("--device", *device, "cpu, cuda or auto")
      ->check(CLI::IsMember({"cpu", "cuda", "auto"}));
}

absl::StatusOr<Device> ChooseDevice(const std::string& name, int ranks) {
  const int gpus = cuda::DeviceCount();
  if (name == "cpu" || (name == "auto" && (gpus == 0 || ranks > 1))) return Device{Backend::kCpu};
  if (!cuda::Built()) {
    return absl::InvalidArgumentError(
        "--device cuda: this program was built without CUDA; configure with -DLT2_CUDA=ON, or use "
        "--device cpu");
  }
  if (gpus == 0) {
    return absl::InvalidArgumentError(
        "--device cuda: there is no GPU here that the driver shows; see lt2 doctor, or use "
        "--device cpu");
  }
  return Device{Backend::kCuda};
}

absl::StatusOr<DType> ChooseDType(const std::string& name, Device device) {
  const bool gpu = device.backend == Backend::kCuda;
  if (name == "fp32") return DType::kF32;
  if (name == "fp64" && !gpu) return DType::kF64;
  if (name == "bf16" && gpu) return DType::kBF16;
  return absl::InvalidArgumentError(
      absl::StrCat("--dtype ", name, ": the ",
                   gpu ? "GPU computes in fp32 or bf16" : "CPU computes in fp32 or fp64",
                   "; choose one, or another --device"));
}

}  // namespace lt2
