#include "launch/trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <thread>

#include "core/strings.h"
#include "launch/metrics.h"
#include "launch/signals.h"
#include "parallel/thread_communicator.h"
#include "tests/support/temporary_directory.h"

namespace lt2 {
namespace {

// A few thousand parameters, one of each mixer, on windows of 32 bytes.
std::string Config(const std::string& precision, int64_t micro_batch, int64_t zero) {
  return StrCat(R"(
      [model]
      width = 16
      layers = 2
      loops = 2
      heads = 2
      ffn = 24
      vocab = 256
      mixers = ["gdn", "full"]
      attention_gate = true
      [data]
      train = [{ path = "text.txt", weight = 1.0 }]
      sequence = 32
      documents = "reset"
      [batch]
      tokens = 512
      micro_batch = )",
                micro_batch, R"(
      [optimizer]
      lr = 1e-4
      [schedule]
      total = "30 steps"
      warmup = "3 steps"
      [parallel]
      zero = )",
                zero, R"(
      precision = ")",
                precision, R"("
      [checkpoint]
      every = "0 steps"
      [log]
      every = "5 steps"
      valid_tokens = 400
  )");
}

class TrainerTest : public testing::Test {
 protected:
  void SetUp() override {
    std::ofstream text(Path("text.txt"));
    for (int i = 0; i < 300; ++i) {
      text << "Line " << i * 7919 % 1000 << " of a play, said by voice " << i % 13 << ".\n\n";
    }
  }
  std::string Path(const std::string& name) const { return folder_.path() + "/" + name; }

  RunConfig Parse(const std::string& toml, const std::vector<std::string>& sets = {}) const {
    absl::StatusOr<RunConfig> config = ParseRunConfig(toml, Path("config.toml"), sets);
    CHECK(config.ok()) << config.status().ToString();
    return *config;
  }

  // Trains on `ranks` threads; every rank must get the same status.
  absl::StatusOr<TrainResult> TrainOn(int ranks, const RunConfig& config, TrainOptions options) {
    std::mutex mutex;
    std::vector<absl::StatusOr<TrainResult>> results;
    RunRanks(ranks, [&](Communicator& world) {
      absl::StatusOr<TrainResult> result = Train(config, options, world);
      std::lock_guard lock(mutex);
      results.push_back(std::move(result));
    });
    for (const auto& result : results) {
      EXPECT_EQ(result.status(), results[0].status());
    }
    return results[0];
  }

  std::vector<double> Losses(const std::string& run) const {
    std::vector<double> losses;
    int64_t step = 0;
    const MetricsHistory history = *ReadMetrics(Path(run));
    for (const auto& [number, line] : history.steps) {
      EXPECT_EQ(number, ++step) << "a step is missing in " << run;
      EXPECT_EQ(line["tokens"].get<int64_t>(), 512 * step);
      losses.push_back(line["loss"].get<double>());
    }
    return losses;
  }

  static void ExpectClose(const std::vector<double>& got, const std::vector<double>& want,
                          double tolerance) {
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_NEAR(got[i], want[i], tolerance * want[i]) << "step " << i + 1;
    }
  }

  TemporaryDirectory folder_;
};

// The same losses on every number of ranks, ZeRO stage and micro-batch: the same samples, counted
// once, whatever the mesh. Float64 shows what float32 would hide.
TEST_F(TrainerTest, EveryMeshGivesTheSameLosses) {
  for (const auto& [precision, tolerance] :
       {std::pair<std::string, double>{"fp64", 1e-10}, {"fp32", 1e-5}}) {
    std::vector<double> want;
    for (int ranks : {1, 2, 4}) {
      for (int64_t zero : {0, 1, 2}) {
        for (int64_t micro_batch : {1, 2, 4}) {
          const std::string run = StrCat(precision, "-", ranks, "-", zero, "-", micro_batch);
          SCOPED_TRACE(run);
          const auto result = TrainOn(ranks, Parse(Config(precision, micro_batch, zero)),
                                      {.run_dir = Path(run), .max_steps = 10});
          ASSERT_TRUE(result.ok()) << result.status();
          const std::vector<double> losses = Losses(run);
          if (want.empty()) want = losses;
          ExpectClose(losses, want, tolerance);
        }
      }
    }
  }
}

TEST_F(TrainerTest, TheSameMeshTwiceGivesTheSameBits) {
  for (const char* run : {"first", "second"}) {
    ASSERT_TRUE(
        TrainOn(2, Parse(Config("fp32", 2, 1)), {.run_dir = Path(run), .max_steps = 10}).ok());
  }
  EXPECT_EQ(Losses("first"), Losses("second"));
}

// Stopped and continued on the same mesh: bit for bit the uninterrupted run; then on another mesh.
TEST_F(TrainerTest, StoppedRunsContinueAsIfNothingHadHappened) {
  const RunConfig config = Parse(Config("fp32", 2, 1));
  ASSERT_TRUE(TrainOn(2, config, {.run_dir = Path("whole")}).ok());
  const std::vector<double> want = Losses("whole");
  ASSERT_EQ(want.size(), 30u);

  ASSERT_TRUE(TrainOn(2, config, {.run_dir = Path("parts"), .max_steps = 10}).ok());
  InstallSignalHandlers();
  raise(SIGUSR1);  // seen at the end of the next step
  const auto stopped = TrainOn(2, config, {.run_dir = Path("parts")});
  ClearPendingSignal();
  ASSERT_TRUE(stopped.ok()) << stopped.status();
  EXPECT_TRUE(stopped->stopped);
  EXPECT_EQ(stopped->step, 11);
  ASSERT_TRUE(TrainOn(2, config, {.run_dir = Path("parts"), .max_steps = 20}).ok());
  std::vector<double> got = Losses("parts");
  EXPECT_EQ(got, std::vector<double>(want.begin(), want.begin() + 20));

  const auto finished = TrainOn(4, Parse(Config("fp32", 1, 0)), {.run_dir = Path("parts")});
  ASSERT_TRUE(finished.ok()) << finished.status();
  EXPECT_FALSE(finished->stopped);
  ExpectClose(Losses("parts"), want, 1e-5);
}

// With one micro-batch a step, runs that change it have the bits of one that does not.
TEST_F(TrainerTest, ZeroMayChangeAtAResume) {
  ASSERT_TRUE(
      TrainOn(2, Parse(Config("fp32", 8, 1)), {.run_dir = Path("whole"), .max_steps = 9}).ok());
  for (int64_t zero : {1, 2, 1}) {
    const int64_t done = std::filesystem::exists(Path("parts")) ? Losses("parts").size() : 0;
    ASSERT_TRUE(TrainOn(2, Parse(Config("fp32", 8, zero)),
                        {.run_dir = Path("parts"), .max_steps = done + 3})
                    .ok());
  }
  EXPECT_EQ(Losses("parts"), Losses("whole"));
}

TEST_F(TrainerTest, TriggerFilesSaveAndStop) {
  const RunConfig config = Parse(Config("fp32", 2, 1), {"schedule.total=5000 steps"});
  // Seen from outside, as a user would: touch `save`, wait for the checkpoint, touch `stop`.
  std::thread user([&] {
    const auto wait = [&](const auto& there) {
      for (int i = 0; i < 6000 && !there(); ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
    };
    wait([&] { return std::filesystem::exists(Path("run/metrics.jsonl")); });
    std::ofstream(Path("run/save")) << "";
    wait([&] {
      return std::filesystem::exists(Path("run/checkpoints")) &&
             !std::filesystem::is_empty(Path("run/checkpoints"));
    });
    std::ofstream(Path("run/stop")) << "";
  });
  const auto result = TrainOn(2, config, {.run_dir = Path("run")});
  user.join();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(result->stopped);
  EXPECT_LT(result->step, 5000);
  const std::vector<JsonLine> events = *ReadEvents(Path("run"));
  const auto saved = std::count_if(events.begin(), events.end(), [](const JsonLine& event) {
    return event["event"] == "checkpoint";
  });
  EXPECT_EQ(saved, 2);
  EXPECT_FALSE(std::filesystem::exists(Path("run/save")));
  EXPECT_FALSE(std::filesystem::exists(Path("run/stop")));
}

TEST_F(TrainerTest, SkippedUpdatesAreCountedAndEndTheRun) {
  RunConfig config =
      Parse(Config("fp32", 2, 1),
            {"schedule.warmup=0 steps", "optimizer.skip_limit=4", "checkpoint.every=1 steps"});
  config.optimizer.lr = 1e38;  // after the first update every gradient is not finite
  const auto result = TrainOn(2, config, {.run_dir = Path("run")});
  EXPECT_TRUE(absl::IsInternal(result.status())) << result.status();
  EXPECT_THAT(std::string(result.status().message()),
              testing::HasSubstr("4 updates in a row were skipped"));
  int64_t skipped = 0;
  const std::vector<JsonLine> events = *ReadEvents(Path("run"));
  for (const JsonLine& event : events) {
    if (event["event"] != "skip") continue;
    EXPECT_EQ(event["skipped"].get<int64_t>(), ++skipped);
  }
  EXPECT_EQ(skipped, 4);
  const MetricsHistory history = *ReadMetrics(Path("run"));
  EXPECT_TRUE(history.steps.at(5)["loss"].is_null());
  EXPECT_TRUE(history.steps.at(5)["grad_norm"].is_null());
  // Nothing was saved while updates were skipped.
  EXPECT_TRUE(std::filesystem::exists(Path("run/checkpoints/step-0000000001")));
  EXPECT_FALSE(std::filesystem::exists(Path("run/checkpoints/step-0000000003")));
}

TEST_F(TrainerTest, MaxMinutesStopsWithTheStateSaved) {
  const auto result =
      TrainOn(2, Parse(Config("fp32", 2, 1)), {.run_dir = Path("run"), .max_minutes = 1e-9});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(result->stopped);
  EXPECT_EQ(result->step, 1);
  EXPECT_TRUE(std::filesystem::exists(Path("run/checkpoints/step-0000000001/manifest.json")));
}

TEST_F(TrainerTest, InitFromTakesWeightsAlone) {
  const RunConfig config = Parse(Config("fp32", 2, 1));
  const auto first = TrainOn(1, config, {.run_dir = Path("first")});
  ASSERT_TRUE(first.ok());
  const auto next =
      TrainOn(2, config, {.run_dir = Path("next"), .init_from = Path("first"), .max_steps = 1});
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_EQ(next->step, 1);
  const std::vector<double> start = Losses("next"), fresh = Losses("first");
  EXPECT_NE(start[0], fresh[0]);
  EXPECT_LT(start[0], fresh[0]);
}

TEST_F(TrainerTest, WhatDoesNotFitIsRefusedWithTheReason) {
  const std::string good = Config("fp32", 2, 1);
  ASSERT_TRUE(TrainOn(1, Parse(good), {.run_dir = Path("run"), .max_steps = 1}).ok());
  const auto wider = TrainOn(2, Parse(good, {"model.ffn=32"}), {.run_dir = Path("run")});
  EXPECT_TRUE(absl::IsInvalidArgument(wider.status())) << wider.status();
  EXPECT_THAT(std::string(wider.status().message()), testing::HasSubstr("ffn"));
  const auto missing = TrainOn(2, Parse(good), {.run_dir = Path("other"), .resume = Path("none")});
  EXPECT_TRUE(absl::IsNotFound(missing.status())) << missing.status();
  const auto uneven = TrainOn(3, Parse(good), {.run_dir = Path("other")});
  EXPECT_TRUE(absl::IsInvalidArgument(uneven.status())) << uneven.status();
}

// Sandwich norms, norms between loops and an exit gate: the same on every mesh, and resumed.
TEST_F(TrainerTest, LoopOptionsTrainAndResume) {
  const std::vector<std::string> options = {"model.sandwich_norm=true", "model.loop_norm=true",
                                            "model.exit_gate=true", "model.exit_entropy=0.05",
                                            "parallel.recompute=loop"};
  const auto config = [&](const char* precision, int64_t micro_batch) {
    return Parse(Config(precision, micro_batch, 1), options);
  };
  ASSERT_TRUE(TrainOn(1, config("fp64", 1), {.run_dir = Path("one"), .max_steps = 6}).ok());
  ASSERT_TRUE(TrainOn(2, config("fp64", 4), {.run_dir = Path("two"), .max_steps = 6}).ok());
  ExpectClose(Losses("two"), Losses("one"), 1e-10);

  ASSERT_TRUE(TrainOn(2, config("fp32", 2), {.run_dir = Path("whole"), .max_steps = 8}).ok());
  for (int64_t steps : {5, 8}) {
    ASSERT_TRUE(TrainOn(2, config("fp32", 2), {.run_dir = Path("parts"), .max_steps = steps}).ok());
  }
  EXPECT_EQ(Losses("parts"), Losses("whole"));
  const MetricsHistory whole = *ReadMetrics(Path("whole")), parts = *ReadMetrics(Path("parts"));
  EXPECT_EQ(parts.valid.at(8)["valid_loss"], whole.valid.at(8)["valid_loss"]);
  const JsonLine& line = whole.steps.at(8);
  const std::vector<double> p = line["exit_probability"];
  ASSERT_EQ(p.size(), 2u);
  EXPECT_NEAR(p[0] + p[1], 1, 1e-6);
  EXPECT_GT(std::min(p[0], p[1]), 0.1);
  EXPECT_NEAR(line["exit_loop"].get<double>(), p[0] + 2 * p[1], 1e-12);
  EXPECT_GT(line["exit_entropy"].get<double>(), 0);
  EXPECT_LE(line["exit_entropy"].get<double>(), std::log(2) + 1e-6);
  EXPECT_EQ(line["exit_probability"], parts.steps.at(8)["exit_probability"]);

  const auto without = TrainOn(2, Parse(Config("fp32", 2, 1)), {.run_dir = Path("whole")});
  EXPECT_TRUE(absl::IsInvalidArgument(without.status())) << without.status();
  EXPECT_THAT(std::string(without.status().message()), testing::HasSubstr("exit_gate"));
}

// The preset's own shape with every loop option learns.
TEST_F(TrainerTest, TinyPresetLearnsWithLoopOptions) {
  absl::StatusOr<RunConfig> config =
      LoadRunConfig("lt2-tiny", {"model.sandwich_norm=true", "model.loop_norm=true",
                                 "model.exit_gate=true", "batch.tokens=512", "batch.micro_batch=2",
                                 "schedule.warmup=2 steps", "log.valid_tokens=2048"});
  ASSERT_TRUE(config.ok()) << config.status();
  const auto result = TrainOn(1, *config, {.run_dir = Path("run"), .max_steps = 12});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_LT(result->loss, 4.5);  // from 6
  EXPECT_LT(result->valid_loss, 4.5);
}

TEST_F(TrainerTest, DiagnosticsAndValidationAreLogged) {
  const auto result =
      TrainOn(2, Parse(Config("fp32", 2, 1)), {.run_dir = Path("run"), .max_steps = 5});
  ASSERT_TRUE(result.ok());
  const MetricsHistory history = *ReadMetrics(Path("run"));
  const JsonLine& fifth = history.steps.at(5);
  for (const char* key : {"loop_loss", "loop_rms", "loop_grad_norm", "first_token_mass"}) {
    ASSERT_TRUE(fifth.contains(key)) << key;
    EXPECT_EQ(fifth[key].size(), 2u) << key;
    EXPECT_FALSE(history.steps.at(4).contains(key));
  }
  ASSERT_TRUE(history.valid.contains(5));
  EXPECT_EQ(history.valid.at(5)["valid_loss"].get<double>(), result->valid_loss);
  // Near its start the model's logits have about unit variance: half a nat above a uniform guess.
  EXPECT_GT(result->valid_loss, std::log(256));
  EXPECT_LT(result->valid_loss, std::log(256) + 1);
}

// What the mixers lose on their own is a key of every step's line, the same on any mesh, and no
// part of the loss; without such mixers there is no key.
TEST_F(TrainerTest, LossesOfTheMixersAreLogged) {
  const RunConfig config =
      Parse(Config("fp64", 2, 1), {"model.mixers=['gdn','dsa']", "model.dsa.top_k=8"});
  const auto logged = [&](const std::string& run) {
    std::vector<double> losses;
    const MetricsHistory history = *ReadMetrics(Path(run));
    for (const auto& [step, line] : history.steps) {
      losses.push_back(line.value("auxiliary_loss", -1.0));
    }
    return losses;
  };
  ASSERT_TRUE(TrainOn(1, config, {.run_dir = Path("one"), .max_steps = 6}).ok());
  ASSERT_TRUE(TrainOn(2, config, {.run_dir = Path("two"), .max_steps = 6}).ok());
  ASSERT_EQ(logged("one").size(), 6u);
  for (const double loss : logged("one")) EXPECT_GT(loss, 0);
  ExpectClose(logged("two"), logged("one"), 1e-9);
  ExpectClose(Losses("two"), Losses("one"), 1e-9);
  const RunConfig without = Parse(Config("fp64", 2, 1));
  ASSERT_TRUE(TrainOn(1, without, {.run_dir = Path("without"), .max_steps = 1}).ok());
  const MetricsHistory history = *ReadMetrics(Path("without"));
  EXPECT_FALSE(history.steps.at(1).contains("auxiliary_loss"));
}

}  // namespace
}  // namespace lt2
