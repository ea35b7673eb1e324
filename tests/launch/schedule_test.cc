#include "launch/schedule.h"

#include <gtest/gtest.h>

#include "core/config.h"

namespace lt2 {
namespace {

constexpr int64_t kStep = 512;  // tokens

Schedule Make(const std::string& text, double peak = 2) {
  const ConfigTable table = *ConfigTable::Parse(text, "s.toml");
  const ScheduleConfig config = ScheduleConfig::Read(table);
  EXPECT_TRUE(table.Finish().ok()) << table.Finish();
  return Schedule(config, peak, kStep);
}

// The rate of an update: at the tokens consumed when it is done.
double RateOfStep(const Schedule& schedule, int64_t step) {
  return schedule.LearningRate(step * kStep);
}

TEST(Schedule, WarmupRisesFromTheFirstStep) {
  for (const char* kind : {"cosine", "linear", "constant", "wsd"}) {
    const Schedule schedule =
        Make(std::string("kind = \"") + kind + "\"\nwarmup = \"4 steps\"\ntotal = \"100 steps\"\n");
    EXPECT_DOUBLE_EQ(RateOfStep(schedule, 1), 0.5) << kind;
    EXPECT_DOUBLE_EQ(RateOfStep(schedule, 2), 1.0) << kind;
    EXPECT_DOUBLE_EQ(RateOfStep(schedule, 3), 1.5) << kind;
    EXPECT_DOUBLE_EQ(RateOfStep(schedule, 4), 2.0) << kind;
  }
}

TEST(Schedule, CosineAtItsEdges) {
  const Schedule schedule =
      Make("kind = \"cosine\"\nwarmup = \"10 steps\"\ntotal = \"110 steps\"\nmin_ratio = 0.1\n");
  EXPECT_DOUBLE_EQ(RateOfStep(schedule, 10), 2.0);
  EXPECT_DOUBLE_EQ(RateOfStep(schedule, 60), 2 * 0.55);
  EXPECT_NEAR(RateOfStep(schedule, 35), 2 * (0.1 + 0.9 * 0.5 * (1 + std::sqrt(0.5))), 1e-15);
  EXPECT_NEAR(RateOfStep(schedule, 110), 0.2, 1e-15);
  EXPECT_NEAR(RateOfStep(schedule, 1000), 0.2, 1e-15);  // behind the end it stays
}

TEST(Schedule, LinearConstantAndWsd) {
  const Schedule linear =
      Make("kind = \"linear\"\nwarmup = \"10 steps\"\ntotal = \"110 steps\"\nmin_ratio = 0\n");
  EXPECT_DOUBLE_EQ(RateOfStep(linear, 60), 1.0);
  EXPECT_DOUBLE_EQ(RateOfStep(linear, 110), 0.0);
  EXPECT_GT(RateOfStep(linear, 109), 0.0);
  EXPECT_DOUBLE_EQ(RateOfStep(linear, 111), 0.0);

  const Schedule constant = Make("kind = \"constant\"\ntotal = \"110 steps\"\nmin_ratio = 0\n");
  EXPECT_EQ(RateOfStep(constant, 1), 2.0);
  EXPECT_EQ(RateOfStep(constant, 110), 2.0);
  EXPECT_EQ(RateOfStep(constant, 500), 2.0);

  const Schedule wsd = Make(
      "kind = \"wsd\"\nwarmup = \"10 steps\"\ntotal = \"110 steps\"\ndecay = \"20 steps\"\n"
      "min_ratio = 0.5\n");
  EXPECT_DOUBLE_EQ(RateOfStep(wsd, 11), 2.0);
  EXPECT_DOUBLE_EQ(RateOfStep(wsd, 90), 2.0);
  EXPECT_DOUBLE_EQ(RateOfStep(wsd, 100), 1.5);
  EXPECT_DOUBLE_EQ(RateOfStep(wsd, 110), 1.0);
  // Without a decay of its own: the last tenth of total.
  const Schedule tenth = Make("kind = \"wsd\"\ntotal = \"100 steps\"\nmin_ratio = 0\n");
  EXPECT_DOUBLE_EQ(RateOfStep(tenth, 90), 2.0);
  EXPECT_DOUBLE_EQ(RateOfStep(tenth, 95), 1.0);
}

TEST(Schedule, TokensAndStepsMeanTheSame) {
  const Schedule steps = Make("warmup = \"10 steps\"\ntotal = \"100 steps\"\n");
  const Schedule tokens = Make("warmup = 5120\ntotal = \"51200 tokens\"\n");
  for (int64_t step = 1; step <= 120; ++step) {
    EXPECT_EQ(RateOfStep(steps, step), RateOfStep(tokens, step));
  }
  EXPECT_EQ(tokens.total_tokens(), 51200);
}

TEST(Schedule, WithoutRoomAfterTheWarmup) {
  const Schedule schedule = Make("warmup = \"5 steps\"\ntotal = \"5 steps\"\nmin_ratio = 0.5\n");
  EXPECT_DOUBLE_EQ(RateOfStep(schedule, 4), 1.6);
  EXPECT_DOUBLE_EQ(RateOfStep(schedule, 5), 1.0);
}

TEST(Schedule, RefusesWhatMakesNoSense) {
  const ConfigTable table = *ConfigTable::Parse(
      "kind = \"cosine\"\ndecay = \"3 steps\"\nwarmup = \"30 min\"\nmin_ratio = 1.5\n", "s.toml");
  ScheduleConfig::Read(table);
  EXPECT_EQ(std::string(table.Finish().message()),
            "s.toml:3: warmup: wants an amount such as \"1000 steps\" or \"2e9 tokens\", got \"30 "
            "min\"\n"
            "s.toml: total: is required, such as \"1000 steps\" or \"2e9 tokens\"\n"
            "s.toml:4: min_ratio: must be from 0 to 1: the share of lr that is left at the end\n"
            "s.toml:2: decay: only kind = \"wsd\" has a decay of its own; remove it");
}

}  // namespace
}  // namespace lt2
