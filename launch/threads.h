// How many threads a rank computes with.
#pragma once

#include "parallel/communicator.h"

namespace lt2 {

// The cores this process may run on, shared among the ranks of its host that share them, unless
// OMP_NUM_THREADS says otherwise. For the calling thread's parallel regions, BLAS included.
void UseThreadsFor(const Communicator& world);

}  // namespace lt2
