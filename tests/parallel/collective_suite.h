// What every communicator must do, called by all ranks of a group of any size: threads, MPI and
// NCCL run the same checks.
#pragma once

#include "parallel/communicator.h"

namespace lt2 {

// Of tensors on `device`.
void CheckEveryCollective(Communicator& world, Device device = {});

}  // namespace lt2
