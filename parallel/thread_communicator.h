// Ranks as threads of one process: what makes thousands of parity runs affordable in tests.
//
// Deterministic: the last rank to arrive carries a collective out, in rank order. A rank that
// returns while others wait for it, and calls that do not fit together, end the process with their
// names.
#pragma once

#include <functional>

#include "parallel/communicator.h"

namespace lt2 {

// Runs fn on n threads at once, each with its rank of the group "world" (one OpenMP thread each),
// and returns when all have.
void RunRanks(int n, const std::function<void(Communicator&)>& fn);

// The same with tensors on one GPU, which NCCL would not let ranks share. Each has memory of its
// own: a freed block is ordered by one stream alone (core/cuda.h). Collectives block the host, on
// which they add, so that no step can be recorded.
void RunRanksOnGpu(int n, Device gpu, const std::function<void(Communicator&)>& fn);

}  // namespace lt2
