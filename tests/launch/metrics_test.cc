#include "launch/metrics.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "core/file.h"
#include "core/philox.h"
#include "tests/support/faulty_file.h"
#include "tests/support/temporary_directory.h"

namespace lt2 {
namespace {

void WriteSteps(MetricsWriter& writer, int64_t first, int64_t last, double loss) {
  for (int64_t step = first; step <= last; ++step) {
    StepMetrics metrics{.step = step, .tokens = step * 100, .loss = loss};
    ASSERT_TRUE(writer.Step(metrics).ok());
  }
}

TEST(Metrics, ALineHasTheKeysOfTheContractInOrder) {
  StepMetrics metrics{.step = 3, .tokens = 6144, .epoch = 0.5, .loss = 1.25, .mfu = std::nullopt};
  metrics.more = {{"rms", {1.0, 2.5}}};
  EXPECT_EQ(ToJson(metrics).dump(),
            R"({"step":3,"tokens":6144,"epoch":0.5,"loss":1.25,"lr":0.0,"grad_norm":0.0,)"
            R"("step_s":0.0,"data_wait_s":0.0,"tokens_per_s":0.0,"tokens_per_s_per_gpu":0.0,)"
            R"("model_tflops_per_gpu":0.0,"mfu":null,"peak_bytes":0,"rms":[1.0,2.5]})");
}

TEST(Metrics, NumbersReadBackToTheSameBits) {
  TemporaryDirectory directory;
  auto writer = MetricsWriter::Open(directory.path());
  ASSERT_TRUE(writer.ok()) << writer.status();
  constexpr uint64_t kSeed = 1;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  std::vector<double> losses = {0.1, 1e-310, -0.0, std::numeric_limits<double>::max(), 1.0 / 3.0};
  for (uint64_t i = 0; losses.size() < 2000; ++i) {
    const Philox4 words = Philox(kSeed, i);
    const double value = std::bit_cast<double>(uint64_t{words[0]} << 32 | words[1]);
    if (std::isfinite(value)) losses.push_back(value);
  }
  for (size_t i = 0; i < losses.size(); ++i) {
    ASSERT_TRUE(writer->Step({.step = static_cast<int64_t>(i + 1), .loss = losses[i]}).ok());
  }
  const auto history = ReadMetrics(directory.path());
  ASSERT_TRUE(history.ok()) << history.status();
  ASSERT_EQ(history->steps.size(), losses.size());
  for (size_t i = 0; i < losses.size(); ++i) {
    const double read = history->steps.at(static_cast<int64_t>(i + 1))["loss"];
    ASSERT_EQ(std::bit_cast<uint64_t>(read), std::bit_cast<uint64_t>(losses[i])) << losses[i];
  }
}

TEST(Metrics, WhatIsNotFiniteIsNull) {
  for (double value :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    EXPECT_TRUE(JsonLine::parse(ToJson({.step = 1, .loss = value}).dump())["loss"].is_null());
  }
}

TEST(Metrics, AfterARestartOnlyTheLastLineOfAStepCounts) {
  TemporaryDirectory directory;
  auto writer = MetricsWriter::Open(directory.path());
  WriteSteps(*writer, 1, 15, 2.0);
  ASSERT_TRUE(writer->Valid(10, 5.0).ok());
  ASSERT_TRUE(writer->Valid(15, 5.0).ok());
  WriteSteps(*writer, 11, 12, 1.0);  // resumed from step 10, ended at 12
  const auto history = ReadMetrics(directory.path());
  ASSERT_TRUE(history.ok()) << history.status();
  EXPECT_EQ(history->steps.size(), 12u);
  EXPECT_EQ(history->steps.at(10)["loss"].get<double>(), 2.0);
  EXPECT_EQ(history->steps.at(11)["loss"].get<double>(), 1.0);
  EXPECT_EQ(history->valid.size(), 1u);
  EXPECT_EQ(history->valid.at(10)["valid_loss"].get<double>(), 5.0);
}

TEST(Metrics, ATornLineCostsOnlyItself) {
  TemporaryDirectory directory;
  {
    FaultyFileSystem files;
    auto writer = MetricsWriter::Open(directory.path());
    WriteSteps(*writer, 1, 2, 2.0);
    files.FailAt(1, FaultyFileSystem::Mode::kCrash);
    EXPECT_TRUE(absl::IsResourceExhausted(writer->Step({.step = 3})));
  }
  auto writer = MetricsWriter::Open(directory.path());
  ASSERT_TRUE(writer.ok());
  WriteSteps(*writer, 3, 4, 1.0);
  const auto history = ReadMetrics(directory.path());
  ASSERT_TRUE(history.ok());
  EXPECT_EQ(history->unreadable, 1);
  EXPECT_EQ(history->steps.size(), 4u);
}

TEST(Metrics, EventsCarryTimeNameAndFields) {
  TemporaryDirectory directory;
  auto writer = MetricsWriter::Open(directory.path());
  ASSERT_TRUE(writer->Event("resume", {{"step", 10}, {"text", "not UTF-8: \xff"}}).ok());
  const auto events = ReadEvents(directory.path());
  ASSERT_TRUE(events.ok() && events->size() == 1u);
  const JsonLine& event = (*events)[0];
  EXPECT_EQ(event["event"], "resume");
  EXPECT_EQ(event["step"], 10);
  const std::string time = event["time"];
  EXPECT_EQ(time.size(), std::string("2025-01-31T12:00:00.000Z").size());
  EXPECT_EQ(time.back(), 'Z');
}

}  // namespace
}  // namespace lt2
