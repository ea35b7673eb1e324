// Ranks as MPI processes, and how a program finds out whether it is one of several.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "parallel/communicator.h"

namespace lt2 {

// Under mpirun or srun with more than one process: the world, MPI started; it ends with the last
// communicator made of it, and every rank must get there or call Abort. Otherwise a group of one,
// without MPI. FailedPrecondition if the launcher and MPI disagree on the number of processes.
// Tells the calling thread its rank (SetLogRank).
absl::StatusOr<std::unique_ptr<Communicator>> StartWorld();

// How many processes the launcher's variables speak of: 1 if there is none, 0 if it does not say.
int LaunchedProcesses();

}  // namespace lt2
