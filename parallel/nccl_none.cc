// Several GPUs in a build without NCCL: they cannot work together.
#include "core/check.h"
#include "parallel/nccl_communicator.h"

namespace lt2 {

absl::Status NcclStatus() {
  return absl::FailedPreconditionError(
      "several GPUs work together by NCCL, which was not found when this program was built: "
      "install it and configure with -DLT2_CUDA=ON");
}

std::unique_ptr<Communicator> MakeNcclCommunicator(std::unique_ptr<Communicator> control, Device) {
  CHECK(control->size() == 1) << NcclStatus().message();
  return control;
}

}  // namespace lt2
