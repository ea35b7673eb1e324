// Early return on failure, which Debian's abseil does not ship.
//
//   RETURN_IF_ERROR(file->Sync());
//   ASSIGN_OR_RETURN(Manifest manifest, ReadManifest(path));
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define RETURN_IF_ERROR(expression)                                         \
  do {                                                                      \
    if (absl::Status status_ = (expression); !status_.ok()) return status_; \
  } while (false)

#define LT2_CONCAT_INNER(a, b) a##b
#define LT2_CONCAT(a, b) LT2_CONCAT_INNER(a, b)
#define LT2_ASSIGN_OR_RETURN(result, lhs, expression) \
  auto result = (expression);                         \
  if (!result.ok()) return result.status();           \
  lhs = *std::move(result)
#define ASSIGN_OR_RETURN(lhs, expression) \
  LT2_ASSIGN_OR_RETURN(LT2_CONCAT(status_or_, __LINE__), lhs, expression)
