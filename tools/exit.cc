#include "tools/exit.h"

namespace lt2 {

int StatusToExitCode(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kExitDone;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kPermissionDenied:
      return kExitBadInput;
    case absl::StatusCode::kDataLoss:
      return kExitDamaged;
    default:
      return kExitFailed;
  }
}

}  // namespace lt2
