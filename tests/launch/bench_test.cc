#include "launch/bench.h"

#include <gtest/gtest.h>

#include "core/strings.h"
#include "parallel/communicator.h"

namespace lt2 {
namespace {

// What the dry run says is what a step holds, and no step after the first asks for memory.
TEST(BenchStep, HoldsWhatWasPlannedAndAllocatesNothingAfterTheFirstStep) {
  for (int loops : {1, 4}) {
    for (const char* recompute : {"none", "block"}) {
      for (int micro_batch : {1, 4}) {
        const std::string which =
            StrCat("loops ", loops, ", recompute ", recompute, ", micro_batch ", micro_batch);
        SCOPED_TRACE(which);
        const absl::StatusOr<RunConfig> config = LoadRunConfig(
            "lt2-tiny", {StrCat("model.loops=", loops), StrCat("parallel.recompute=", recompute),
                         StrCat("batch.micro_batch=", micro_batch), "data.sequence=64",
                         "batch.tokens=512", "model.width=32", "model.ffn=64"});
        ASSERT_TRUE(config.ok()) << config.status();
        const absl::StatusOr<StepTiming> timing = BenchStep(*config, 2, *MakeGroupOfOne("world"));
        ASSERT_TRUE(timing.ok()) << timing.status();
        EXPECT_EQ(timing->growths, 0);
        const double ratio =
            static_cast<double>(timing->peak_bytes) / static_cast<double>(timing->planned_bytes);
        EXPECT_GT(ratio, 0.9);
        EXPECT_LT(ratio, 1.1);
      }
    }
  }
}

TEST(BenchOps, UnknownOperatorsAreNamed) {
  const auto timings = BenchOps({"rms_nrom"}, DType::kF32, 1);
  EXPECT_TRUE(absl::IsNotFound(timings.status()));
  EXPECT_NE(timings.status().message().find("rms_norm"), std::string::npos);
}

}  // namespace
}  // namespace lt2
