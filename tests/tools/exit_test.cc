#include "tools/exit.h"

#include <gtest/gtest.h>

namespace lt2 {
namespace {

TEST(Exit, EveryKindOfStatusHasItsCode) {
  EXPECT_EQ(StatusToExitCode(absl::OkStatus()), 0);
  EXPECT_EQ(StatusToExitCode(absl::InvalidArgumentError("")), 2);
  EXPECT_EQ(StatusToExitCode(absl::NotFoundError("")), 2);
  EXPECT_EQ(StatusToExitCode(absl::OutOfRangeError("")), 2);
  EXPECT_EQ(StatusToExitCode(absl::FailedPreconditionError("")), 2);
  EXPECT_EQ(StatusToExitCode(absl::PermissionDeniedError("")), 2);
  EXPECT_EQ(StatusToExitCode(absl::DataLossError("")), 3);
  EXPECT_EQ(StatusToExitCode(absl::InternalError("")), 1);
  EXPECT_EQ(StatusToExitCode(absl::ResourceExhaustedError("")), 1);
  EXPECT_EQ(StatusToExitCode(absl::UnavailableError("")), 1);
}

}  // namespace
}  // namespace lt2
