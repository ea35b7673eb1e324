#include "core/quantity.h"

#include <gtest/gtest.h>

#include "core/version.h"

namespace lt2 {
namespace {

using Unit = Quantity::Unit;

TEST(Quantity, ReadsNumbersAndUnits) {
  const struct {
    const char* text;
    double value;
    Unit unit;
  } cases[] = {
      {"4096", 4096, Unit::kTokens},        {"1000 steps", 1000, Unit::kSteps},
      {"1 step", 1, Unit::kSteps},          {"2e9 tokens", 2e9, Unit::kTokens},
      {"2.5e3tokens", 2500, Unit::kTokens}, {"30 min", 1800, Unit::kSeconds},
      {" 1.5 h ", 5400, Unit::kSeconds},    {"45 s", 45, Unit::kSeconds},
      {"2 days", 172800, Unit::kSeconds},   {"0", 0, Unit::kTokens},
  };
  for (const auto& c : cases) {
    const absl::StatusOr<Quantity> quantity = ParseQuantity(c.text, Unit::kTokens);
    ASSERT_TRUE(quantity.ok()) << quantity.status();
    EXPECT_EQ(*quantity, (Quantity{c.value, c.unit})) << c.text;
    EXPECT_EQ(*ParseQuantity(quantity->ToString(), Unit::kSteps), *quantity) << c.text;
  }
}

TEST(Quantity, RefusesTheRest) {
  for (const char* text : {"", "steps", "1000 stops", "-1 steps", "1.5 steps", "nan", "inf s",
                           "1e300", "1 2 steps", "0x10"}) {
    EXPECT_EQ(ParseQuantity(text, Unit::kTokens).status().code(),
              absl::StatusCode::kInvalidArgument)
        << text;
  }
}

TEST(Quantity, ConvertsAtAStepsTokens) {
  const Quantity steps{.value = 3, .unit = Unit::kSteps};
  const Quantity tokens{.value = 1025, .unit = Unit::kTokens};
  EXPECT_EQ(steps.Tokens(512), 1536);
  EXPECT_EQ(steps.Steps(512), 3);
  EXPECT_EQ(tokens.Tokens(512), 1025);
  EXPECT_EQ(tokens.Steps(512), 3);  // 2.002 steps
  EXPECT_EQ((Quantity{.value = 1024}).Steps(512), 2);
  EXPECT_EQ((Quantity{.value = 0}).Steps(512), 0);
}

TEST(Quantity, ReadsFromATable) {
  const ConfigTable table =
      *ConfigTable::Parse("a = 5\nb = \"2 steps\"\nc = \"1 min\"\nd = [1]\ne = \"x\"\n", "q.toml");
  Quantity a, b, c{.value = 9}, d{.value = 9}, e{.value = 9}, absent{.value = 9};
  ReadQuantity(table, "a", Unit::kSteps, {Unit::kSteps}, &a);
  ReadQuantity(table, "b", Unit::kTokens, {Unit::kSteps}, &b);
  ReadQuantity(table, "none", Unit::kTokens, {Unit::kSteps}, &absent);
  EXPECT_TRUE(table.Table("none").Finish().ok());
  EXPECT_EQ(a, (Quantity{5, Unit::kSteps}));
  EXPECT_EQ(b, (Quantity{2, Unit::kSteps}));
  EXPECT_EQ(absent.value, 9);

  ReadQuantity(table, "c", Unit::kTokens, {Unit::kSteps, Unit::kTokens}, &c);
  ReadQuantity(table, "d", Unit::kTokens, {Unit::kSteps}, &d);
  ReadQuantity(table, "e", Unit::kTokens, {Unit::kSteps}, &e);
  EXPECT_EQ(std::string(table.Finish().message()),
            "q.toml:3: c: wants an amount such as \"1000 steps\" or \"2e9 tokens\", got \"1 min\"\n"
            "q.toml:4: d: wants a string or a number, got the list [1]\n"
            "q.toml:5: e: wants a number and a unit such as \"1000 steps\", \"2e9 tokens\" or \"30 "
            "min\", got \"x\"");
  EXPECT_EQ(c.value, 9);
}

TEST(Version, IsFilledIn) {
  EXPECT_FALSE(GitCommit().empty());
  EXPECT_NE(CompilerVersion().find(' '), std::string::npos);
  EXPECT_FALSE(BuildType().empty());
  EXPECT_FALSE(CudaVersion().empty());
}

}  // namespace
}  // namespace lt2
