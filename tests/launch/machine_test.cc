#include "launch/machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/strings.h"

namespace lt2 {
namespace {

using testing::HasSubstr;

constexpr char kMachine[] = R"(
memory = 1e9
ranks_per_node = 4
call_s = 1e-6
[products.fp32]
flops_per_byte = [1, 100]
flops = [1e9, 1e11]
[copy]
bytes = [1e6]
rate = [1e10]
[node]
bandwidth = 1e9
latency_s = 1e-5
[network]
bandwidth = 1e8
latency_s = 1e-4
[[operator]]
name = "scan"
forward = 0.5
backward = 0.25
)";

TEST(Machine, RatesLieOnLinesOfLogarithms) {
  const RateCurve curve{{1, 100}, {1e9, 1e11}};
  EXPECT_DOUBLE_EQ(curve(0.1), 1e9);
  EXPECT_DOUBLE_EQ(curve(1), 1e9);
  EXPECT_NEAR(curve(10), 1e10, 1);
  EXPECT_DOUBLE_EQ(curve(1000), 1e11);
}

TEST(Machine, AKernelTakesWhatItComputesOrWhatItMoves) {
  const Machine machine = *ParseMachine(kMachine, "folder/mine.toml");
  EXPECT_EQ(machine.name, "mine");
  const auto seconds = [&](const char* op, double flops, double bytes, bool backward) {
    return machine.SecondsOf(
        {.op = op, .flops = flops, .bytes = bytes, .place = {.backward = backward}},
        Precision::kFp32);
  };
  EXPECT_DOUBLE_EQ(seconds("linear", 1e12, 1e6, false), 1e-6 + 10);
  EXPECT_DOUBLE_EQ(seconds("add", 0, 1e9, false), 1e-6 + 0.1);
  EXPECT_DOUBLE_EQ(seconds("scan", 0, 1e9, false), 1e-6 + 0.2);
  EXPECT_DOUBLE_EQ(seconds("scan", 0, 1e9, true), 1e-6 + 0.4);
}

TEST(Machine, GroupsBeyondANodeUseTheNetwork) {
  const Machine machine = *ParseMachine(kMachine, "mine.toml");
  EXPECT_EQ(machine.SecondsOf(3, 1e9, 1, 1), 0);
  EXPECT_DOUBLE_EQ(machine.SecondsOf(3, 1e9, 4, 1), 3e-5 + 1);
  EXPECT_DOUBLE_EQ(machine.SecondsOf(3, 1e9, 2, 2), 3e-5 + 1);
  // Eight in a row: four adapters on a node; two of them far apart: one.
  EXPECT_DOUBLE_EQ(machine.SecondsOf(1, 1e9, 8, 1), 1e-4 + 2.5);
  EXPECT_DOUBLE_EQ(machine.SecondsOf(1, 1e9, 32, 1), 3e-4 + 2.5);
  EXPECT_DOUBLE_EQ(machine.SecondsOf(1, 1e9, 2, 4), 1e-4 + 10);
}

TEST(Machine, RanksOfACpuShareIt) {
  Machine machine = *ParseMachine(kMachine, "mine.toml");
  EXPECT_EQ(machine.ForRanks(2).memory, 1e9);
  machine.shared = true;
  const Machine half = machine.ForRanks(2), quarter = machine.ForRanks(64);
  EXPECT_EQ(half.memory, 5e8);
  EXPECT_EQ(quarter.memory, 2.5e8);
  EXPECT_EQ(half.copy(1e6), 5e9);
  EXPECT_EQ(half.products.at(Precision::kFp32).flops(1), 5e8);
}

TEST(Machine, IsWrittenAsItIsRead) {
  const Machine machine = *ParseMachine(kMachine, "mine.toml");
  const std::string text = machine.ToToml();
  const absl::StatusOr<Machine> again = ParseMachine(text, "other.toml");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->ToToml(), text);
  EXPECT_EQ(again->shares.at("scan").backward, 0.25);
}

TEST(Machine, MistakesAreReportedTogether) {
  const absl::Status status =
      ParseMachine("memory = -1\nspeed = 3\n[copy]\nbytes = [2, 1]\nrate = [1, 1]\n", "mine.toml")
          .status();
  for (const char* what : {"memory", "speed: unknown key", "products", "ascending", "bandwidth"}) {
    EXPECT_THAT(std::string(status.message()), HasSubstr(what));
  }
  EXPECT_THAT(
      std::string(ParseMachine(kMachine, "m.toml")->CheckPrecision(Precision::kBf16).message()),
      HasSubstr("has figures for fp32"));
}

TEST(Machine, NumbersThatAreNoneAreRefused) {
  const auto with = [](std::string_view from, std::string_view to) {
    std::string text = kMachine;
    const size_t at = text.find(from);
    text.replace(at, from.size(), to);
    return std::string(ParseMachine(text, "m.toml").status().message());
  };
  EXPECT_EQ(with("1e9", "2e9"), "");
  EXPECT_THAT(with("memory = 1e9", "memory = nan"), HasSubstr("memory"));
  EXPECT_THAT(with("call_s = 1e-6", "call_s = nan"), HasSubstr("call_s"));
  EXPECT_THAT(with("[1e9, 1e11]", "[nan, 1e11]"), HasSubstr("above 0"));
  EXPECT_THAT(with("[1, 100]", "[1, inf]"), HasSubstr("above 0"));
  EXPECT_THAT(with("bandwidth = 1e9", "bandwidth = nan"), HasSubstr("bandwidth"));
  EXPECT_THAT(with("latency_s = 1e-5", "latency_s = -1"), HasSubstr("latency_s"));
  EXPECT_THAT(with("forward = 0.5", "forward = nan"), HasSubstr("forward"));
}

TEST(Machine, ThoseThatComeWithTheProgramAreSound) {
  for (const std::string name : {"h200", "h100", "a100-40", "a100-80"}) {
    EXPECT_THAT(MachineNames(), testing::Contains(name));
    const absl::StatusOr<Machine> machine = LoadMachine(name);
    ASSERT_TRUE(machine.ok()) << machine.status();
    EXPECT_EQ(machine->name, name);
    const Machine::Products& bf16 = machine->products.at(Precision::kBf16);
    EXPECT_LT(bf16.flops(1e4), bf16.peak);
    EXPECT_GT(bf16.flops(1e4), 0.5 * bf16.peak);
    EXPECT_FALSE(machine->shares.empty());
    EXPECT_TRUE(machine->CheckPrecision(Precision::kBf16).ok());
  }
  EXPECT_THAT(std::string(LoadMachine("h20").status().message()),
              HasSubstr("did you mean 'h200'?"));
}

}  // namespace
}  // namespace lt2
