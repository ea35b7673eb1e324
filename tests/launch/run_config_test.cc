#include "launch/run_config.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "core/strings.h"
#include "launch/environment.h"
#include "launch/presets.h"
#include "parallel/communicator.h"

namespace lt2 {
namespace {

constexpr char kSmall[] = R"([model]
width = 16
layers = 2
heads = 2
vocab = 256
[data]
train = [{ path = "data/samples/tinyshakespeare.txt" }]
sequence = 32
[batch]
tokens = 128
micro_batch = 2
[schedule]
warmup = "2 steps"
total = "10 steps"
)";

std::string MessageOf(const absl::Status& status) { return std::string(status.message()); }

// The message of a configuration that must be refused.
std::string Refusal(const std::vector<std::string>& sets) {
  const absl::StatusOr<RunConfig> config = ParseRunConfig(kSmall, "small.toml", sets);
  EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument);
  return MessageOf(config.status());
}

TEST(RunConfig, EveryPresetLoadsAndItsResolvedTextGivesTheSame) {
  const absl::StatusOr<std::vector<Preset>> presets = ListPresets();
  ASSERT_TRUE(presets.ok()) << presets.status();
  ASSERT_FALSE(presets->empty());
  for (const Preset& preset : *presets) {
    SCOPED_TRACE(preset.name);
    EXPECT_FALSE(preset.summary.empty());
    const absl::StatusOr<RunConfig> config = LoadRunConfig(preset.name, {});
    ASSERT_TRUE(config.ok()) << config.status();
    const std::string resolved = config->ToToml();
    const absl::StatusOr<RunConfig> again = ParseRunConfig(resolved, "config.toml");
    ASSERT_TRUE(again.ok()) << again.status() << "\n" << resolved;
    EXPECT_EQ(again->ToToml(), resolved);
    EXPECT_EQ(again->run.name, config->run.name);
    EXPECT_TRUE(MeshFor(*config, 1).ok());
  }
}

TEST(RunConfig, DefaultsAndOverrides) {
  const absl::StatusOr<RunConfig> config = ParseRunConfig(
      kSmall, "folder/small.toml",
      {"model.loops=2", "model.loops=4", "model.sandwich_norm=true", "model.loop_norm=true",
       "model.exit_gate=true", "model.exit_entropy=0.25", "parallel.precision=fp64"});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->run.name, "small");
  EXPECT_EQ(config->run.dir, "runs/small");
  EXPECT_EQ(config->model.loops, 4);
  EXPECT_EQ(config->parallel.precision, Precision::kFp64);
  EXPECT_EQ(config->total_steps(), 10);
  EXPECT_EQ(config->log.every, (Quantity{10, Quantity::Unit::kSteps}));
  EXPECT_EQ(config->checkpoint.every, (Quantity{1800, Quantity::Unit::kSeconds}));
  const std::string resolved = config->ToToml();
  const absl::StatusOr<RunConfig> again = ParseRunConfig(resolved, "elsewhere/config.toml");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->ToToml(), resolved);
  EXPECT_TRUE(again->model.sandwich_norm && again->model.loop_norm && again->model.exit_gate);
  EXPECT_EQ(again->model.exit_entropy, 0.25);
}

TEST(RunConfig, MistakesOfAllSectionsAreReportedTogether) {
  const std::string message =
      Refusal({"run.sede=3", "model.heads=3", "data.sequence=\"long\"", "batch.micro_batch=0",
               "optimizer.lr=-1", "schedule.kind=cosin", "parallel.tp=0", "parallel.zero=3",
               "checkpoint.files=host", "log.every=0", "sweeps.x=1"});
  for (const char* part :
       {"--set run.sede: run.sede: unknown key; did you mean 'seed'?",
        "model.heads: 3 does not divide",
        "data.sequence: wants an integer, got the string \"long\"",
        "batch.micro_batch: must be from 1 to", "optimizer.lr: ", "schedule.kind: wants one of",
        "parallel.tp: ", "parallel.zero: zero = 3: wants 0, 1 or 2",
        "checkpoint.files: wants one of \"rank\", \"node\"", "log.every: must be above 0",
        "--set sweeps.x: sweeps: unknown key"}) {
    EXPECT_NE(message.find(part), std::string::npos) << part << "\n in \n" << message;
  }
}

TEST(RunConfig, CrossChecks) {
  EXPECT_EQ(Refusal({"batch.tokens=100"}),
            "--set batch.tokens: batch.tokens: 100 is not a multiple of data.sequence 32 × "
            "micro_batch 2 × parallel.dp 1 = 64; the nearest are 64 and 128");
  EXPECT_NE(Refusal({"parallel.dp=3"}).find("× parallel.dp 3 = 192; the nearest is 192"),
            std::string::npos);
  EXPECT_EQ(
      Refusal({"schedule.warmup=2000 tokens"}),
      "--set schedule.warmup: schedule.warmup: warmup is 2000 tokens, longer than total, 1280");
}

TEST(RunConfig, PrecisionsBelongToDevices) {
  const std::unique_ptr<Communicator> world = MakeGroupOfOne("world");
  const auto refusal = [&](const std::string& precision, Backend backend) {
    const RunConfig config = *LoadRunConfig("lt2-tiny", {"parallel.precision=" + precision});
    const absl::Status status =
        StepOptionsFor(config, *MeshFor(config, 1), {backend}, 1, *world).status();
    return std::string(status.message());
  };
  EXPECT_NE(refusal("bf16", Backend::kCpu).find("use \"fp32\" on a CPU"), std::string::npos);
  EXPECT_NE(refusal("fp64", Backend::kCuda).find("use --device cpu"), std::string::npos);
  EXPECT_EQ(refusal("fp64", Backend::kCpu), "");
  EXPECT_EQ(refusal("bf16", Backend::kCuda), "");
}

TEST(RunConfig, SizesThatKernelsOfGpusDoNotTakeAreRefusedBeforeARun) {
  const std::unique_ptr<Communicator> world = MakeGroupOfOne("world");
  const RunConfig config =
      *LoadRunConfig("lt2-tiny", {"model.width=2048", "model.mixers=[\"kda\", \"full\"]"});
  const auto options = [&](Backend backend) {
    return StepOptionsFor(config, *MeshFor(config, 1), {backend}, 1, *world).status();
  };
  EXPECT_TRUE(options(Backend::kCpu).ok()) << options(Backend::kCpu);
  const absl::Status refused = options(Backend::kCuda);
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(refused.message().find("model.kda.head_dim: 512 channels of a key"), std::string::npos)
      << refused;
}

TEST(RunConfig, AMistakeIsToldWithoutWhatFollowsFromIt) {
  EXPECT_EQ(Refusal({"model=3"}), "--set model: model: wants a table, got the integer 3");
  EXPECT_EQ(Refusal({"data.sequence=long"}),
            "--set data.sequence: data.sequence: wants an integer, got the string \"long\"");
  EXPECT_EQ(Refusal({"batch.tokens=many"}),
            "--set batch.tokens: batch.tokens: wants an integer, got the string \"many\"");
}

TEST(RunConfig, WhatCannotBeCountedIsRefused) {
  EXPECT_NE(Refusal({"schedule.total=9e15 steps"}).find("more than 9e15 tokens"),
            std::string::npos);
  EXPECT_NE(Refusal({"batch.tokens=9000000000000000"}).find("batch.tokens: must be from 1 to"),
            std::string::npos);
  EXPECT_NE(Refusal({"data.sequence=67108864", "batch.micro_batch=1048576", "model.ffn=4096",
                     "batch.tokens=70368744177664"})
                .find("batch."),
            std::string::npos);
  EXPECT_NE(Refusal({"data.sequence=67108864", "batch.tokens=67108864", "batch.micro_batch=1",
                     "model.width=1048576", "model.layers=64", "model.heads=256"})
                .find("need more than any machine has"),
            std::string::npos);
  for (const char* set :
       {"optimizer.lr=nan", "optimizer.lr=1e9", "optimizer.eps=0", "optimizer.clip=-1",
        "optimizer.weight_decay=inf", "optimizer.betas=[0.9, 1.0]", "optimizer.betas=[nan, 0.9]"}) {
    const std::string key = std::string(set).substr(0, std::string(set).find('='));
    EXPECT_TRUE(Refusal({set}).starts_with("--set " + key + ": " + key + ": ")) << Refusal({set});
  }
}

TEST(RunConfig, TheMeshMustDivideTheBatch) {
  const RunConfig config = *ParseRunConfig(kSmall, "small.toml");
  EXPECT_EQ(MeshFor(config, 1)->dp, 1);
  EXPECT_EQ(MeshFor(config, 2)->dp, 2);
  const absl::Status status = MeshFor(config, 4).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(MessageOf(status).find("is not a multiple of data.sequence"), std::string::npos)
      << status;
  const RunConfig two = *ParseRunConfig(kSmall, "small.toml", {"parallel.dp=2"});
  EXPECT_EQ(MeshFor(two, 1).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(RunConfig, TheMeshSharesRowsOfTokens) {
  const auto with = [](int64_t cp) {
    return *ParseRunConfig(kSmall, "small.toml", {StrCat("parallel.cp=", cp)});
  };
  EXPECT_EQ(MeshFor(with(2), 4)->dp, 2);
  EXPECT_EQ(MeshFor(with(2), 3).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(MessageOf(MeshFor(with(2), 8).status()).find("legal on 8 ranks: "), std::string::npos);
  const absl::Status thin = MeshFor(with(100000), 100000).status();
  EXPECT_NE(MessageOf(thin).find("fewer than one a rank"), std::string::npos) << thin;
}

TEST(RunConfig, RowsAreCutIntoTilesThatRanksCanShare) {
  EXPECT_NE(Refusal({"parallel.row_tiles=4", "parallel.cp=3"})
                .find("4 tiles cannot be shared by parallel.cp = 3 ranks; set a multiple of it"),
            std::string::npos);
  EXPECT_NE(Refusal({"parallel.row_tiles=4", "parallel.pp=2"}).find("parallel.pp = 1"),
            std::string::npos);
  const auto with = [](int64_t tiles) {
    return *ParseRunConfig(kSmall, "small.toml",
                           {StrCat("parallel.row_tiles=", tiles), "parallel.cp=2"});
  };
  const std::unique_ptr<Communicator> alone = MakeGroupOfOne();
  const Mesh mesh = *MeshFor(with(4), 2);
  EXPECT_EQ(StepOptionsFor(with(4), mesh, {Backend::kCpu}, 1, *alone)->row_tiles, 4);
  EXPECT_NE(MessageOf(StepOptionsFor(with(4), mesh, {Backend::kCuda}, 1, *alone).status())
                .find("parallel.row_tiles: works on CPUs"),
            std::string::npos);
  EXPECT_EQ(MessageOf(MeshFor(with(6), 2).status()),
            "parallel.row_tiles = 6: a micro-batch of 64 tokens cannot be cut into as many equal "
            "tiles; parallel.cp = 2 allows 1, 2, 4, 8, 16, 32, 64");
}

TEST(RunConfig, AModelPresetFillsWhatIsNotWritten) {
  const std::string text = std::string(kSmall).substr(std::string(kSmall).find("[data]"));
  const absl::StatusOr<RunConfig> config =
      ParseRunConfig("[model]\npreset = \"lt2-tiny\"\nlayers = 10\n" + text, "mine.toml");
  ASSERT_TRUE(config.ok()) << config.status();
  const RunConfig preset = *LoadRunConfig("lt2-tiny", {});
  EXPECT_EQ(config->model.layers, 10);
  EXPECT_EQ(config->model.width, preset.model.width);
  EXPECT_EQ(config->model.mixers, preset.model.mixers);
  // Options that came with the preset for a mixer that is gone are no mistake.
  EXPECT_TRUE(LoadRunConfig("lt2-tiny", {"model.mixers=[\"full\"]"}).ok())
      << LoadRunConfig("lt2-tiny", {"model.mixers=[\"full\"]"}).status();

  const absl::Status unknown =
      ParseRunConfig("[model]\npreset = \"lt2-tyni\"\n" + text, "mine.toml").status();
  EXPECT_EQ(unknown.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(MessageOf(unknown).find("did you mean 'lt2-tiny'?"), std::string::npos) << unknown;
}

TEST(RunConfig, NoSuchConfiguration) {
  const absl::Status status = LoadRunConfig("lt2-tyni", {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(MessageOf(status),
            "lt2-tyni: no such file and no preset of that name; did you mean 'lt2-tiny'?");
}

TEST(RunConfig, RelativePathsAreLookedUpBesideTheConfiguration) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::path(testing::TempDir()) / "lt2_run_config_test";
  fs::create_directories(folder);
  std::ofstream(folder / "text.txt") << "words";
  const std::string file = (folder / "a.toml").string();
  std::ofstream(file) << kSmall;

  const absl::StatusOr<RunConfig> config = LoadRunConfig(
      file, {"data.train=[{ path = \"text.txt\", weight = 2.0 }]", "data.valid=none.txt"});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->run.name, "a");
  EXPECT_EQ(config->data.train[0].path, fs::canonical(folder / "text.txt").string());
  EXPECT_EQ(config->data.valid, "none.txt");  // nowhere: as written, for the message
  fs::remove_all(folder);
}

}  // namespace
}  // namespace lt2
