#include "tools/device.h"

#include "checkpoints/agreement.h"
#include "core/cuda.h"
#include "core/log.h"
#include "core/strings.h"
#include "parallel/gpus.h"
#include "parallel/nccl_communicator.h"

namespace lt2 {

void AddDeviceFlag(CLI::App& app, std::string* device) {
  app.add_option("--device", *device, "cpu, cuda or auto")
      ->check(CLI::IsMember({"cpu", "cuda", "auto"}));
}

absl::StatusOr<Device> ChooseDevice(const std::string& name) {
  const int gpus = cuda::DeviceCount();
  if (name == "cpu" || (name == "auto" && gpus == 0)) return Device{Backend::kCpu};
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

absl::StatusOr<Device> ChooseDevice(const std::string& name, std::unique_ptr<Communicator>* world) {
  if ((*world)->size() == 1) return ChooseDevice(name);
  if (name == "cpu") return Device{Backend::kCpu};
  if (name == "cuda" && !cuda::Built()) return ChooseDevice(name);
  absl::StatusOr<Device> device = ClaimGpu(**world);
  if (device.ok()) {
    const absl::Status nccl = Agree(**world, NcclStatus());
    if (!nccl.ok()) device = nccl;
  }
  if (!device.ok() && name == "auto") {
    if (cuda::DeviceCount() > 0) LogInfo(StrCat("on the CPU: ", device.status().message()));
    return Device{Backend::kCpu};
  }
  if (device.ok()) *world = MakeNcclCommunicator(std::move(*world), *device);
  return device;
}

absl::StatusOr<DType> ChooseDType(const std::string& name, Device device) {
  const bool gpu = device.backend == Backend::kCuda;
  if (name == "fp32") return DType::kF32;
  if (name == "fp64" && !gpu) return DType::kF64;
  if (name == "bf16" && gpu) return DType::kBF16;
  return absl::InvalidArgumentError(
      StrCat("--dtype ", name, ": the ",
             gpu ? "GPU computes in fp32 or bf16" : "CPU computes in fp32 or fp64",
             "; choose one, or another --device"));
}

}  // namespace lt2
