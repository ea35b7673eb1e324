// What every communicator must do, called by all ranks of a group of any size: threads and MPI run
// the same checks.
#pragma once

#include "parallel/communicator.h"

namespace lt2 {

void CheckEveryCollective(Communicator& world);

}  // namespace lt2
