// What a resume reads, and that it never trusts damage, whatever mesh saved and whatever one loads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <mutex>

#include "checkpoints/catalog.h"
#include "checkpoints/compare.h"
#include "core/file.h"
#include "core/strings.h"
#include "launch/environment.h"
#include "launch/metrics.h"
#include "launch/resume.h"
#include "launch/trainer.h"
#include "parallel/thread_communicator.h"
#include "tests/support/temporary_directory.h"

namespace lt2 {
namespace {

using testing::HasSubstr;

struct MeshCase {
  std::string name;
  int ranks;
  std::vector<std::string> sets;
};
const MeshCase kOne{"one", 1, {}};
const MeshCase kDp2{"dp2", 2, {"parallel.zero=1"}};
const MeshCase kDp4{"dp4", 4, {"parallel.zero=2"}};
const MeshCase kTp2{"tp2", 2, {"parallel.tp=2", "parallel.zero=0"}};
const MeshCase kPp2{"pp2", 2, {"parallel.pp=2", "parallel.zero=1"}};
const MeshCase kMixed{"pp2_dp2_tp2", 8, {"parallel.pp=2", "parallel.tp=2", "parallel.zero=1"}};

class ResumeMeshes : public testing::Test {
 protected:
  void SetUp() override {
    std::ofstream text(Path("text.txt"));
    for (int i = 0; i < 300; ++i) text << "Line " << i * 7919 % 1000 << " of a play.\n\n";
  }
  std::string Path(const std::string& name) const { return StrCat(folder_.path(), "/", name); }
  std::string Saved(const std::string& run, int64_t step) const {
    return Path(StrCat(run, "/checkpoints/", StepName(step)));
  }

  RunConfig Config(const MeshCase& mesh, int64_t width) const {
    std::vector<std::string> sets = mesh.sets;
    sets.push_back(StrCat("model.width=", width));
    sets.push_back(StrCat("model.ffn=", 2 * width));
    const auto config = ParseRunConfig(R"(
        [model]
        width = 16
        ffn = 32
        layers = 2
        loops = 2
        heads = 2
        vocab = 256
        mixers = ["gdn", "full"]
        attention_gate = true
        [data]
        train = [{ path = "text.txt" }]
        sequence = 32
        [batch]
        tokens = 128
        micro_batch = 1
        [optimizer]
        lr = 1e-3
        [schedule]
        total = "30 steps"
        warmup = "0 steps"
        [checkpoint]
        every = "1 steps"
        keep_last = 9
        [log]
        valid_tokens = 0
    )",
                                       Path("config.toml"), sets);
    CHECK(config.ok()) << config.status();
    return *config;
  }

  // Every rank must get the same status.
  absl::StatusOr<TrainResult> TrainOn(const MeshCase& mesh, int64_t width, TrainOptions options,
                                      const std::string& run) {
    options.run_dir = Path(run);
    std::mutex mutex;
    std::vector<absl::StatusOr<TrainResult>> results;
    RunRanks(mesh.ranks, [&](Communicator& world) {
      absl::StatusOr<TrainResult> result = Train(Config(mesh, width), options, world);
      std::lock_guard lock(mutex);
      results.push_back(std::move(result));
    });
    for (const auto& result : results) EXPECT_EQ(result.status(), results[0].status());
    return results[0];
  }

  TemporaryDirectory folder_;
};

// Of tensors so large that the files' structure beside them is small.
TEST_F(ResumeMeshes, LittleMoreIsReadThanIsNeeded) {
  constexpr int64_t kWidth = 256;
  for (const MeshCase& from : {kOne, kDp2, kDp4, kTp2, kPp2}) {
    const auto saved = TrainOn(from, kWidth, {.max_steps = 1}, from.name);
    ASSERT_TRUE(saved.ok()) << saved.status();
    const std::string path = Saved(from.name, 1);
    const int64_t size = ReadManifest(path)->bytes() +
                         FileSystem::Get().FileSize(JoinPath(path, kManifestFile)).value();
    for (const MeshCase& to : {kOne, kDp2, kDp4, kTp2, kPp2, kMixed}) {
      SCOPED_TRACE(StrCat(from.name, " -> ", to.name));
      std::atomic<int64_t> needed = 0;  // by all ranks
      RunRanks(to.ranks, [&](Communicator& world) {
        const RunConfig config = Config(to, kWidth);
        const Mesh mesh = MeshFor(config, world.size()).value();
        const RankGroups groups = MakeGroups(world, mesh);
        const auto loader = Loader::Open(config.data, config.run.seed, config.model.vocab).value();
        TrainStep step(StepOptionsFor(config, mesh, {}, loader->max_documents(1), world).value(),
                       mesh, groups);
        for (const TensorPiece& piece : PiecesOf(step, /*owned=*/false)) {
          needed += piece.tensor.bytes();
        }
        const auto start = LoadStart(Path("new"), {.resume = path}, config, *loader, step, world);
        ASSERT_TRUE(start.ok()) << start.status();
        EXPECT_EQ(start->bytes_read, size);
        world.Barrier();
        EXPECT_LE(static_cast<double>(start->bytes_read), 1.05 * static_cast<double>(needed));
        const auto from_weights = LoadStart(Path("new"), {.resume = "never", .init_from = path},
                                            config, *loader, step, world);
        ASSERT_TRUE(from_weights.ok()) << from_weights.status();
        const int64_t weights = 4 * LanguageModel(config.model).params().elements();
        EXPECT_LE(static_cast<double>(from_weights->bytes_read),
                  1.05 * static_cast<double>(weights));
      });
    }
  }
}

struct DamageCase {
  std::string name;
  std::function<void(const std::string& checkpoint, const Manifest& manifest)> inflict;
  std::vector<std::string> told;  // of the file and the tensor
};

void FlipBit(const std::string& path, int64_t at) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  const int byte = file.seekg(at).get();
  file.seekp(at).put(static_cast<char>(byte ^ 4));
}

// In the last box of a tensor.
DamageCase FlipIn(const std::string& tensor) {
  return {StrCat("a bit of ", tensor),
          [tensor](const std::string& checkpoint, const Manifest& manifest) {
            const StoredBox& box = manifest.Find(tensor)->boxes.back();
            FlipBit(JoinPath(checkpoint, box.file), box.offset + 5);
          },
          {"shard-", tensor}};
}

std::vector<DamageCase> Damages() {
  const auto in_file = [](const std::string& name, const auto& inflict) {
    return DamageCase{name,
                      [=](const std::string& checkpoint, const Manifest&) {
                        inflict(JoinPath(checkpoint, name));
                      },
                      {name}};
  };
  const auto flip = [](const std::string& path) { FlipBit(path, 100); };
  return {FlipIn("param/embed.weight"),
          FlipIn("param/norm.weight"),
          FlipIn("adam_m/layers.0.ffn.up.weight"),
          FlipIn("adam_v/layers.1.norm2.weight"),
          in_file("shard-00000.h5",
                  [](const std::string& path) {
                    std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
                  }),
          in_file("shard-00001.h5", [](const std::string& path) { std::filesystem::remove(path); }),
          in_file("index.h5", flip),
          in_file("manifest.json", flip)};
}

// A run on any mesh goes on from the older checkpoint, as if the damaged one had never been; and
// without an older one it ends.
TEST_F(ResumeMeshes, DamageFallsBackOrEndsTheRun) {
  constexpr int64_t kWidth = 16;
  ASSERT_TRUE(TrainOn(kDp2, kWidth, {.max_steps = 3}, "saved").ok());
  const auto copy = [&](const std::string& run, std::initializer_list<int64_t> steps) {
    std::filesystem::remove_all(Path(run));
    for (int64_t step : steps) {
      std::filesystem::create_directories(Path(run + "/checkpoints"));
      std::filesystem::copy(Saved("saved", step), Saved(run, step));
    }
  };
  for (const MeshCase& mesh : {kOne, kDp2, kDp4, kTp2, kMixed}) {
    copy("undisturbed", {2});
    ASSERT_TRUE(TrainOn(mesh, kWidth, {.max_steps = 4}, "undisturbed").ok());
    const Checkpoint want = Checkpoint::Open(Saved("undisturbed", 4)).value();
    for (const DamageCase& damage : Damages()) {
      SCOPED_TRACE(StrCat(mesh.name, ": ", damage.name));
      const Manifest manifest = ReadManifest(Saved("saved", 3)).value();
      copy("run", {2, 3});
      damage.inflict(Saved("run", 3), manifest);
      const auto result = TrainOn(mesh, kWidth, {.max_steps = 4}, "run");
      ASSERT_TRUE(result.ok()) << result.status();
      const std::string log = FileSystem::Get().ReadFile(Path("run/log.txt")).value();
      for (const std::string& told : damage.told) EXPECT_THAT(log, HasSubstr(told));
      EXPECT_THAT(log, HasSubstr("resuming after step 2"));
      const Checkpoint got = Checkpoint::Open(Saved("run", 4)).value();
      EXPECT_EQ(got.info().extra, want.info().extra);
      const auto tensors = Compare(want, got);
      ASSERT_TRUE(tensors.ok()) << tensors.status();
      for (const TensorDifference& tensor : *tensors) EXPECT_TRUE(tensor.equal()) << tensor.path;

      copy("alone", {3});
      damage.inflict(Saved("alone", 3), manifest);
      for (const std::string& resume : {std::string("auto"), Saved("alone", 3)}) {
        const absl::Status refused =
            TrainOn(mesh, kWidth, {.resume = resume, .max_steps = 4}, "alone").status();
        EXPECT_TRUE(absl::IsDataLoss(refused)) << refused;
        for (const std::string& told : damage.told) {
          EXPECT_THAT(std::string(refused.message()), HasSubstr(told));
        }
      }
      EXPECT_TRUE(FileSystem::Get().Exists(Saved("alone", 3)));
    }
  }
}

}  // namespace
}  // namespace lt2
