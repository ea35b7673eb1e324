// Where runs start: rewound, begun anew, from damaged or foreign checkpoints, from weights alone.
#include "launch/resume.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <mutex>

#include "checkpoints/catalog.h"
#include "checkpoints/export.h"
#include "checkpoints/import.h"
#include "core/file.h"
#include "core/strings.h"
#include "launch/import_model.h"
#include "launch/metrics.h"
#include "launch/model_loader.h"
#include "launch/replay.h"
#include "launch/trainer.h"
#include "parallel/thread_communicator.h"
#include "tests/support/temporary_directory.h"

namespace lt2 {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr char kConfig[] = R"(
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
    [batch]
    tokens = 256
    micro_batch = 1
    [optimizer]
    lr = 1e-3
    [schedule]
    total = "30 steps"
    warmup = "0 steps"
    [checkpoint]
    every = "1 steps"
    keep_last = 2
)";

class ResumeTest : public testing::Test {
 protected:
  void SetUp() override {
    std::ofstream text(Path("text.txt"));
    for (int i = 0; i < 300; ++i) text << "Line " << i * 7919 % 1000 << " of a play.\n\n";
  }
  std::string Path(const std::string& name) const { return folder_.path() + "/" + name; }
  std::string CheckpointPath(const std::string& run, int64_t step) const {
    return Path(StrCat(run, "/checkpoints/", StepName(step)));
  }

  // Trains in the run's directory; every rank must get the same status.
  absl::StatusOr<TrainResult> TrainOn(int ranks, const std::string& run, TrainOptions options,
                                      const std::vector<std::string>& sets = {}) {
    const absl::StatusOr<RunConfig> config = ParseRunConfig(kConfig, Path("config.toml"), sets);
    CHECK(config.ok()) << config.status().ToString();
    options.run_dir = Path(run);
    std::mutex mutex;
    std::vector<absl::StatusOr<TrainResult>> results;
    RunRanks(ranks, [&](Communicator& world) {
      absl::StatusOr<TrainResult> result = Train(*config, options, world);
      std::lock_guard lock(mutex);
      results.push_back(std::move(result));
    });
    for (const auto& result : results) EXPECT_EQ(result.status(), results[0].status());
    return results[0];
  }
  void MustTrain(const std::string& run, TrainOptions options,
                 const std::vector<std::string>& sets = {}) {
    const auto result = TrainOn(1, run, std::move(options), sets);
    ASSERT_TRUE(result.ok()) << result.status();
  }
  std::string Refusal(const std::string& run, TrainOptions options,
                      const std::vector<std::string>& sets = {}) {
    const auto result = TrainOn(2, run, std::move(options), sets);
    EXPECT_TRUE(absl::IsInvalidArgument(result.status())) << result.status();
    return std::string(result.status().message());
  }

  std::vector<std::string> Checkpoints(const std::string& run) const {
    return FileSystem::Get().List(Path(run + "/checkpoints")).value();
  }
  double Loss(const std::string& run, int64_t step) const {
    return ReadMetrics(Path(run))->steps.at(step)["loss"].get<double>();
  }
  // Flips a bit of the tensor. Returns the file's name.
  static std::string Damage(const std::string& checkpoint, const std::string& tensor) {
    const Manifest manifest = ReadManifest(checkpoint).value();
    const StoredBox& box = manifest.Find(tensor)->boxes[0];
    std::fstream file(JoinPath(checkpoint, box.file));
    const int byte = file.seekg(box.offset).get();
    file.seekp(box.offset).put(static_cast<char>(byte ^ 4));
    return box.file;
  }
  std::string Log(const std::string& run) const {
    return FileSystem::Get().ReadFile(Path(run + "/log.txt")).value();
  }

  TemporaryDirectory folder_;
};

TEST_F(ResumeTest, NeverBeginsAnotherCourseThatAutoContinues) {
  MustTrain("run", {.max_steps = 5});
  ASSERT_THAT(Checkpoints("run"), ElementsAre(StepName(4), StepName(5)));
  MustTrain("run", {.resume = "never", .max_steps = 2}, {"run.seed=7"});
  EXPECT_THAT(Checkpoints("run"),
              ElementsAre(StepName(1), StepName(2), StepName(4) + ".abandoned-1",
                          StepName(5) + ".abandoned-1"));
  EXPECT_THAT(Log("run"), HasSubstr(StepName(5) + ".abandoned-1"));

  MustTrain("run", {.max_steps = 5}, {"run.seed=7"});
  MustTrain("other", {.max_steps = 5}, {"run.seed=7"});
  EXPECT_EQ(Loss("run", 5), Loss("other", 5));
  EXPECT_THAT(Checkpoints("run"), ElementsAre(StepName(4), StepName(4) + ".abandoned-1",
                                              StepName(5), StepName(5) + ".abandoned-1"));
}

TEST_F(ResumeTest, RewindingSetsAsideWhatCameAfter) {
  MustTrain("run", {.max_steps = 6}, {"checkpoint.keep_last=5"});
  MustTrain("run", {.resume = CheckpointPath("run", 2), .max_steps = 3});
  EXPECT_THAT(Checkpoints("run"),
              ElementsAre(StepName(2), StepName(3), StepName(3) + ".abandoned-1",
                          StepName(4) + ".abandoned-1", StepName(5) + ".abandoned-1",
                          StepName(6) + ".abandoned-1"));
  const auto result = TrainOn(1, "run", {.max_steps = 4});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->step, 4);
  EXPECT_THAT(Log("run"), HasSubstr("resuming after step 3"));
}

// Else a full disk would stay full: nothing can be saved that would be followed by deletions.
TEST_F(ResumeTest, ALowerKeepLastHoldsFromTheStart) {
  MustTrain("run", {.max_steps = 6}, {"checkpoint.keep_last=5"});
  MustTrain("run", {.resume = CheckpointPath("run", 6), .max_steps = 6},
            {"checkpoint.keep_last=3", "checkpoint.keep_every=2 steps"});
  EXPECT_THAT(Checkpoints("run"), ElementsAre(StepName(2), StepName(4), StepName(5), StepName(6)));
  MustTrain("run", {.max_steps = 6});
  EXPECT_THAT(Checkpoints("run"), ElementsAre(StepName(5), StepName(6)));
}

TEST_F(ResumeTest, ARefusedStartMovesNothing) {
  MustTrain("run", {.max_steps = 4});
  Refusal("run", {.resume = CheckpointPath("run", 3)}, {"model.ffn=32"});
  EXPECT_THAT(Checkpoints("run"), ElementsAre(StepName(3), StepName(4)));
}

// Four ranks hold parts of what one rank saved whole; with init_from none reads the moment.
TEST_F(ResumeTest, ADamagedPathIsRefusedOnAnyMesh) {
  MustTrain("run", {.max_steps = 1});
  const std::string path = CheckpointPath("run", 1);
  for (const std::string name : {"adam_m/embed.weight", "param/embed.weight"}) {
    const std::string file = Damage(path, name);
    for (const TrainOptions& options :
         {TrainOptions{.resume = path}, TrainOptions{.init_from = path, .max_steps = 1}}) {
      SCOPED_TRACE(StrCat(name, " ", options.init_from));
      const absl::Status status = TrainOn(4, "other", options).status();
      if (!options.init_from.empty() && name.starts_with("adam_m")) {
        EXPECT_TRUE(status.ok()) << status;
        std::filesystem::remove_all(Path("other"));
        continue;
      }
      EXPECT_TRUE(absl::IsDataLoss(status)) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr(StrCat(file, ": ", name)));
    }
  }
}

TEST_F(ResumeTest, AReplayGoesFromTheNewestSoundCheckpointBeforeIt) {
  MustTrain("run", {.max_steps = 4}, {"checkpoint.keep_last=5"});
  Damage(CheckpointPath("run", 3), "adam_v/embed.weight");
  const RunConfig config = ParseRunConfig(kConfig, Path("config.toml"), {}).value();
  const auto world = MakeGroupOfOne();
  const auto result = Replay(config, {.run_dir = Path("run")}, 4, *world);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->from, 2);
  EXPECT_TRUE(result->same()) << result->Verdict();
  EXPECT_THAT(Checkpoints("run"), ElementsAre(StepName(1), StepName(2), StepName(3), StepName(4)));
  const absl::Status none = Replay(config, {.run_dir = Path("run")}, 1, *world).status();
  EXPECT_TRUE(absl::IsNotFound(none)) << none;
  EXPECT_THAT(std::string(none.message()), HasSubstr("no checkpoint of an earlier step"));
}

TEST_F(ResumeTest, AModelIsLoadedFromWhereItsParametersAreSound) {
  MustTrain("run", {.max_steps = 2});
  const auto load = [&](const std::string& path) {
    return LoadModel(path, DType::kF32, {Backend::kCpu});
  };
  Damage(CheckpointPath("run", 2), "adam_m/embed.weight");
  EXPECT_EQ(load(Path("run"))->step, 2);
  const std::string file = Damage(CheckpointPath("run", 2), "param/embed.weight");
  EXPECT_EQ(load(Path("run"))->step, 1);
  const absl::Status named = load(CheckpointPath("run", 2)).status();
  EXPECT_TRUE(absl::IsDataLoss(named)) << named;
  EXPECT_THAT(std::string(named.message()), HasSubstr(file + ": param/embed.weight"));
  Damage(CheckpointPath("run", 1), "param/embed.weight");
  EXPECT_TRUE(absl::IsDataLoss(load(Path("run")).status()));
}

TEST_F(ResumeTest, ASmallerOrLargerModelIsRefusedByName) {
  MustTrain("run", {.max_steps = 1});
  const std::string smaller = Refusal("run", {}, {"model.layers=1", "model.mixers=[\"gdn\"]"});
  EXPECT_THAT(smaller, HasSubstr("only in the checkpoint"));
  EXPECT_THAT(smaller, HasSubstr("adam_m/layers.1."));
  EXPECT_THAT(smaller, HasSubstr("model.layers: 2 -> 1"));
  EXPECT_THAT(smaller, Not(HasSubstr("only in this run")));

  const std::string larger = Refusal("run", {}, {"model.layers=4"});
  EXPECT_THAT(larger, HasSubstr("only in this run"));
  EXPECT_THAT(larger, HasSubstr("adam_m/layers.2."));

  const std::string wider = Refusal("other", {.init_from = Path("run")}, {"model.ffn=32"});
  EXPECT_THAT(wider, HasSubstr("of another shape"));
  EXPECT_THAT(wider, HasSubstr("param/layers.0."));
  EXPECT_THAT(wider, Not(HasSubstr("adam_m")));
  EXPECT_THAT(wider, HasSubstr("model.ffn: 24 -> 32"));
}

TEST_F(ResumeTest, InitFromIsAlwaysCheckedAndSaysWhenItIsNotUsed) {
  MustTrain("run", {.max_steps = 1});
  for (const std::string& nowhere : {std::string("auto"), Path("none")}) {
    for (const char* run : {"run", "new"}) {
      const auto result = TrainOn(2, run, {.init_from = nowhere});
      EXPECT_TRUE(absl::IsNotFound(result.status())) << result.status();
      EXPECT_THAT(std::string(result.status().message()), HasSubstr("--init-from " + nowhere));
    }
  }
  MustTrain("run", {.init_from = Path("run"), .max_steps = 2});
  EXPECT_THAT(Log("run"), HasSubstr("is not used"));
  MustTrain("new", {.init_from = Path("run"), .max_steps = 1});
  EXPECT_THAT(Log("new"), Not(HasSubstr("is not used")));
}

// Of a model from elsewhere nobody knows the tokenizer.
TEST_F(ResumeTest, AnImportedModelStartsARunAsItsCheckpointDoes) {
  MustTrain("run", {.max_steps = 2});
  const Checkpoint checkpoint = Checkpoint::Open(CheckpointPath("run", 2)).value();
  ASSERT_TRUE(ExportSafetensors(checkpoint, Path("exported"), {}).ok());
  ASSERT_TRUE(ImportModel({.path = Path("exported")}, Path("own")).ok());
  EXPECT_EQ(ReadManifest(Path("own"))->info.tokenizer_hash, checkpoint.info().tokenizer_hash);

  const SafetensorsModel model = SafetensorsModel::Open(Path("exported")).value();
  std::vector<ImportedParam> params;
  for (const auto& [name, tensor] : model.tensors()) {
    params.push_back({.name = name, .shape = tensor.shape, .from = name});
  }
  ASSERT_TRUE(ImportParams(model, params, {}, Path("foreign")).ok());

  MustTrain("from_run", {.init_from = CheckpointPath("run", 2), .max_steps = 1});
  for (const char* imported : {"own", "foreign"}) {
    const std::string run = StrCat("from_", imported);
    MustTrain(run, {.init_from = Path(imported), .max_steps = 1});
    EXPECT_EQ(Loss(run, 1), Loss("from_run", 1));
  }
  // It has no moments, nor what the optimizer counted.
  EXPECT_THAT(Refusal("resumed", {.resume = Path("own")}), HasSubstr("--init-from"));
}

TEST_F(ResumeTest, AnEmptyResumeIsRefused) {
  MustTrain("run", {.max_steps = 1});
  EXPECT_THAT(Refusal("run", {.resume = ""}), HasSubstr("auto, never"));
}

TEST_F(ResumeTest, WithoutItsCountersARunIsRefused) {
  MustTrain("run", {.max_steps = 1});
  const std::string path = CheckpointPath("run", 1);
  for (const char* key : {"norms", "norm_mean", "norm_variance"}) {
    Manifest manifest = ReadManifest(path).value();
    const nlohmann::json whole = manifest.info.extra;
    const auto write = [&](const nlohmann::json& extra) {
      manifest.info.extra = extra;
      ASSERT_TRUE(FileSystem::Get().WriteFile(path + "/" + kManifestFile, ToJson(manifest)).ok());
    };
    nlohmann::json without = whole;
    without.erase(key);
    write(without);
    for (const std::string& resume : {std::string("auto"), path}) {
      const std::string refusal = Refusal("run", {.resume = resume, .max_steps = 2});
      EXPECT_THAT(refusal, HasSubstr(StrCat(path, ": its manifest lacks extra.", key, ",")));
      EXPECT_THAT(refusal, HasSubstr("--init-from"));
    }
    MustTrain("new", {.resume = "never", .init_from = path, .max_steps = 1});
    write(whole);
  }
  MustTrain("run", {.max_steps = 2});
}

// With two skips in a row saved and three allowed, a resumed run may skip one more: it counts anew.
TEST_F(ResumeTest, SkipsBeforeAResumeDoNotCountInARow) {
  MustTrain("run", {.max_steps = 1});
  const std::string path = CheckpointPath("run", 1);
  Manifest manifest = ReadManifest(path).value();
  // A norm a hundred times smaller than any: every later step is a spike.
  manifest.info.extra = {{"skipped", 2},
                         {"skipped_in_row", 2},
                         {"norms", 100},
                         {"norm_mean", 1e-6},
                         {"norm_variance", 1e-12}};
  ASSERT_TRUE(FileSystem::Get().WriteFile(path + "/" + kManifestFile, ToJson(manifest)).ok());
  const std::vector<std::string> sets = {"optimizer.skip_limit=3", "optimizer.spike_z=5.0"};
  const auto two = TrainOn(1, "run", {.max_steps = 3}, sets);
  ASSERT_TRUE(two.ok()) << two.status();
  const auto events = ReadEvents(Path("run"));
  ASSERT_TRUE(events.ok());
  EXPECT_EQ(std::count_if(events->begin(), events->end(),
                          [](const JsonLine& event) { return event["event"] == "skip"; }),
            2);
}

}  // namespace
}  // namespace lt2
