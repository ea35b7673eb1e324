// Which GPU each rank computes on: one process a GPU, in the order of a host's ranks.
#pragma once

#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "parallel/communicator.h"

namespace lt2 {

// What a rank sees, and what it would take.
struct GpuClaim {
  std::string host;
  int visible = 0;  // GPUs
  std::string gpu;  // the name that no other GPU has, of the one it would take; "" if there is none
};

// The index of the GPU that a host's local_rank-th rank takes of those it sees. Where each rank is
// given one of its own, as clusters do, that is the only one.
inline int GpuIndex(int local_rank, int visible) { return visible == 0 ? 0 : local_rank % visible; }

// OK if every rank has a GPU to itself; otherwise InvalidArgument saying what to change.
absl::Status CheckClaims(std::span<const GpuClaim> claims);

// This rank's GPU, which its calling thread uses from here on. Collective: every rank gets the same
// status.
absl::StatusOr<Device> ClaimGpu(Communicator& world);

}  // namespace lt2
