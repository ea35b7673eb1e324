// Ranks with a GPU each: what lies on the GPU moves by NCCL, all else by the transport beneath.
//
// Collectives follow each other on the rank's own stream (parallel/nccl_rank.h) and can be captured
// in a CUDA graph: the capture forks at the call and joins at Wait, which must come before the end
// of the capture. Sums have the same bits each time for the same group and size, because NCCL fixes
// the order by these; they may differ from the CPU's. Environment variables of NCCL's hold as they
// are set: NCCL_MAX_CTAS limits the multiprocessors it takes from kernels beside it.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "parallel/communicator.h"

namespace lt2 {

// OK where several GPUs can work together: NCCL was compiled in and is found.
absl::Status NcclStatus();

// `control` with its GPU collectives on `device`, this rank's own; a group of one is returned as it
// is. Collective; NcclStatus() must be OK on every rank.
std::unique_ptr<Communicator> MakeNcclCommunicator(std::unique_ptr<Communicator> control,
                                                   Device device);

}  // namespace lt2
