#include "launch/bench.h"

#include <gtest/gtest.h>

#include <set>

#include "core/strings.h"
#include "launch/bench_machine.h"
#include "launch/bench_target.h"
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
        const absl::StatusOr<StepTiming> timing =
            BenchStep(*config, {}, 2, *MakeGroupOfOne("world"));
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

TEST(BenchMachine, MeasuresWhatPlansAreMadeFrom) {
  const std::unique_ptr<Communicator> alone = MakeGroupOfOne("world");
  const absl::StatusOr<Machine> machine = MeasureMachine({}, Precision::kFp32, *alone, 1);
  ASSERT_TRUE(machine.ok()) << machine.status();
  const RateCurve& flops = machine->products.at(Precision::kFp32).flops;
  for (const double rate : flops.rate) EXPECT_GT(rate, 1e7);
  for (const char* op : {"attention", "scan_delta", "rms_norm", "head_loss", "linear"}) {
    EXPECT_TRUE(machine->shares.contains(op)) << op;
  }
  for (const auto& [op, share] : machine->shares) {
    EXPECT_GT(share.forward, 0) << op;
    EXPECT_GT(share.backward, 0) << op;
  }
  const absl::StatusOr<Machine> again = ParseMachine(machine->ToToml(), "again.toml");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->ToToml(), machine->ToToml());
}

TEST(BenchOps, UnknownOperatorsAreNamed) {
  const auto timings = BenchOps({"rms_nrom"}, {}, DType::kF32, 1);
  EXPECT_TRUE(absl::IsNotFound(timings.status()));
  EXPECT_NE(timings.status().message().find("rms_norm"), std::string::npos);
}

// An update, and choices of what to read.
const std::set<std::string> kWithoutGradients = {"adamw", "step_decision", "select_blocks",
                                                 "lightning_indexer"};

// Every operator and every mixer: no crash, and figures that can be true.
TEST(BenchOps, EveryTargetRuns) {
  const auto timings = BenchOps({}, {}, DType::kF32, 1);
  ASSERT_TRUE(timings.ok()) << timings.status();
  const std::vector<std::string> names = BenchTargetNames();
  ASSERT_EQ(timings->size(), names.size());
  for (size_t i = 0; i < names.size(); ++i) {
    const OpTiming& t = (*timings)[i];
    SCOPED_TRACE(names[i]);
    EXPECT_EQ(t.op, names[i]);
    EXPECT_FALSE(t.name.empty());
    EXPECT_GT(t.forward.seconds, 0);
    EXPECT_EQ(t.backward.seconds > 0, kWithoutGradients.count(t.op) == 0);
    EXPECT_GT(t.forward.bytes, 0);
    EXPECT_GT(t.forward.floor_s, 0);
    if (t.op.starts_with("mixer.")) {
      EXPECT_GT(t.forward.flops + t.backward.flops,
                2.0 * 3 * 1024 * 4 * 512 * 512);  // three times four projections
    }
  }
}

TEST(BenchOps, AMixerIsFoundByName) {
  const auto timings = BenchOps({"mixer.kda"}, {}, DType::kF64, 1);
  ASSERT_TRUE(timings.ok()) << timings.status();
  ASSERT_EQ(timings->size(), 1u);
  const auto unknown = BenchOps({"mixer.kdaa"}, {}, DType::kF32, 1).status();
  EXPECT_NE(unknown.message().find("mixer.kda"), std::string::npos) << unknown;
}

}  // namespace
}  // namespace lt2
