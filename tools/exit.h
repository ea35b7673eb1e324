// What a Status means to the shell: the exit codes of lt2, in one place.
#pragma once

#include "absl/status/status.h"

namespace lt2 {

inline constexpr int kExitDone = 0;
inline constexpr int kExitFailed = 1;    // while running
inline constexpr int kExitBadInput = 2;  // wrong flags, configuration or input
inline constexpr int kExitDamaged = 3;   // data or checkpoint
inline constexpr int kExitStopped = 75;  // early, with the state saved: run me again

// OK: 0; InvalidArgument, NotFound, OutOfRange, FailedPrecondition, PermissionDenied: 2;
// DataLoss: 3; others: 1.
int StatusToExitCode(const absl::Status& status);

}  // namespace lt2
