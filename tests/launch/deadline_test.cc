#include "launch/deadline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>

#include "core/strings.h"
#include "tests/support/temporary_directory.h"

namespace lt2 {
namespace {

// An environment variable until the end of the scope.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) {
    if (const char* was = std::getenv(name)) before_ = was;
    setenv(name, value.c_str(), 1);
  }
  ~Variable() {
    if (before_) {
      setenv(name_, before_->c_str(), 1);
    } else {
      unsetenv(name_);
    }
  }

 private:
  const char* name_;
  std::optional<std::string> before_;
};

TEST(Deadline, WithoutOneNothingIsLate) {
  const Deadline deadline(0);
  EXPECT_FALSE(deadline.Near(1e9, 1e9));
  EXPECT_EQ(deadline.ToString(), "");
}

TEST(Deadline, LeavesTimeForTwoStepsAndASaveAndAHalf) {
  const Deadline deadline(2);
  EXPECT_FALSE(deadline.Near(20, 50));  // 115 s of 120
  EXPECT_TRUE(deadline.Near(20, 54));   // 121 s
  EXPECT_TRUE(deadline.Near(61, 0));
  EXPECT_THAT(deadline.ToString(), testing::HasSubstr("2.0 min, --max-minutes"));
}

TEST(Deadline, TheJobsEndCountsWhereItIsEarlier) {
  const Variable end("SLURM_JOB_END_TIME", StrCat(std::time(nullptr) + 600));
  EXPECT_TRUE(Deadline(0).Near(310, 0));
  EXPECT_FALSE(Deadline(0).Near(290, 0));
  EXPECT_THAT(Deadline(60).ToString(), testing::HasSubstr("SLURM job"));
  EXPECT_THAT(Deadline(1).ToString(), testing::HasSubstr("--max-minutes"));
}

TEST(Deadline, SqueueIsAskedWhereSlurmDoesNotSayTheEnd) {
  const TemporaryDirectory folder;
  const std::string program = folder.path() + "/squeue";
  const std::time_t end = std::time(nullptr) + 600;
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", std::localtime(&end));
  std::ofstream(program) << "#!/bin/sh\n[ \"$2\" = --jobs=42 ] && echo " << text << "\n";
  std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  const Variable path("PATH", folder.path() + ":" + std::getenv("PATH"));
  const Variable job("SLURM_JOB_ID", "42");
  EXPECT_TRUE(Deadline(0).Near(310, 0));
  EXPECT_FALSE(Deadline(0).Near(290, 0));
  std::ofstream(program) << "#!/bin/sh\necho Unknown\n";
  EXPECT_EQ(Deadline(0).ToString(), "");
}

}  // namespace
}  // namespace lt2
