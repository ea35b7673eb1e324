#include "parallel/gpus.h"

#include <map>
#include <sstream>
#include <vector>

#include "core/cuda.h"
#include "core/strings.h"

namespace lt2 {

absl::Status CheckClaims(std::span<const GpuClaim> claims) {
  std::map<std::string, int> ranks;  // of a host
  for (const GpuClaim& claim : claims) ++ranks[claim.host];
  std::map<std::string, size_t> taken;  // by which rank
  for (size_t r = 0; r < claims.size(); ++r) {
    const GpuClaim& claim = claims[r];
    if (claim.gpu.empty()) {
      return absl::InvalidArgumentError(
          StrCat("--device cuda: rank ", r, " sees no GPU on ", claim.host,
                 "; start ranks only where there are GPUs, or use --device cpu"));
    }
    const auto [other, free] = taken.try_emplace(claim.gpu, r);
    if (free) continue;
    return absl::InvalidArgumentError(
        StrCat("--device cuda: ", claim.host, " has ", ranks[claim.host], " ranks and rank ", r,
               " sees ", claim.visible, claim.visible == 1 ? " GPU" : " GPUs",
               ", so that it would share one with rank ", other->second,
               "; start one rank a GPU (mpirun -n ", claim.visible, ", or srun with ",
               "--ntasks-per-node and --gpus-per-node alike), or use --device cpu"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Device> ClaimGpu(Communicator& world) {
  const int visible = cuda::DeviceCount();
  const int index = GpuIndex(world.local_rank(), visible);
  const std::string gpu = visible > 0 ? cuda::Identity(index) : "";
  std::vector<GpuClaim> claims;
  for (const std::string& text :
       world.GatherStrings(StrCat(visible, " ", world.host(), " ", gpu))) {
    GpuClaim& claim = claims.emplace_back();
    std::istringstream(text) >> claim.visible >> claim.host >> claim.gpu;
  }
  const absl::Status status = CheckClaims(claims);
  if (!status.ok()) return status;
  cuda::UseDevice(index);
  return Device{Backend::kCuda, static_cast<int8_t>(index)};
}

}  // namespace lt2
