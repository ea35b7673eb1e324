// Runs that move between meshes by checkpoints: of every mesh, onto every other one.
#include <gtest/gtest.h>

#include <fstream>
#include <map>

#include "checkpoints/compare.h"
#include "checkpoints/writer.h"
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

constexpr int64_t kSavedStep = 4, kLastStep = 14, kWindows = 12;  // windows: of a step

struct MeshCase {
  std::string name;
  int ranks, dp;
  std::vector<std::string> sets;
};
void PrintTo(const MeshCase& mesh, std::ostream* os) { *os << mesh.name; }

std::vector<MeshCase> Meshes() {
  const std::string zero0 = "parallel.zero=0", zero1 = "parallel.zero=1";
  const std::string cp2 = "parallel.cp=2", cp3 = "parallel.cp=3", tp2 = "parallel.tp=2";
  const std::string tp3 = "parallel.tp=3", sequence = "parallel.sequence_parallel=true";
  const std::string pp2 = "parallel.pp=2", late_weights = "parallel.pipeline=ring-zb";
  return {{"one", 1, 1, {zero0}},
          {"dp2_zero2", 2, 2, {"parallel.zero=2"}},
          {"dp4_zero1", 4, 4, {zero1}},
          {"tp3_sp_zero1", 3, 1, {zero1, tp3, sequence}},
          {"cp2_zero1", 2, 1, {zero1, cp2}},
          {"dp2_cp3_zero1", 6, 2, {zero1, cp3}},
          {"dp3_tp2_zero1", 6, 3, {zero1, tp2}},
          {"cp2_tp2_sp", 4, 1, {zero0, cp2, tp2, sequence}},
          {"pp2_dp2_zero1", 4, 2, {zero1, pp2}},
          {"pp2_tp2_zb", 4, 1, {zero0, pp2, tp2, late_weights}}};
}

class SavedRuns : public testing::Test {
 protected:
  void SetUp() override {
    std::ofstream text(Path("text.txt"));
    for (int i = 0; i < 400; ++i) {
      text << "Line " << i * 7919 % 1000 << " of a play, said by voice " << i % 13 << ".\n\n";
    }
  }
  std::string Path(const std::string& name) const { return StrCat(folder_.path(), "/", name); }
  std::string Saved(const std::string& run, int64_t step) const {
    return Path(StrCat(run, "/checkpoints/", StepName(step)));
  }

  RunConfig Config(const MeshCase& mesh, const std::string& precision) const {
    const int64_t windows = kWindows / mesh.dp;  // of a rank
    std::vector<std::string> sets = mesh.sets;
    sets.push_back(StrCat("parallel.precision=", precision));
    sets.push_back(StrCat("batch.micro_batch=", windows % 2 == 0 ? windows / 2 : windows));
    const auto config = ParseRunConfig(R"(
        [model]
        width = 48
        layers = 2
        loops = 2
        heads = 6
        ffn = 60
        vocab = 256
        mixers = ["gdn", "full"]
        attention_gate = true
        [data]
        train = [{ path = "text.txt" }]
        sequence = 32
        [batch]
        tokens = 384
        [optimizer]
        lr = 1e-4
        [schedule]
        total = "30 steps"
        warmup = "3 steps"
        [checkpoint]
        every = "4 steps"
        keep_last = 9
        [log]
        valid_tokens = 0
    )",
                                       Path("config.toml"), sets);
    CHECK(config.ok()) << config.status();
    return *config;
  }

  void TrainOn(const MeshCase& mesh, const std::string& precision, const std::string& run,
               const std::string& resume = "auto") {
    RunRanks(mesh.ranks, [&](Communicator& world) {
      const TrainOptions options{.run_dir = Path(run), .resume = resume, .max_steps = kLastStep};
      const auto result = Train(Config(mesh, precision), options, world);
      ASSERT_TRUE(result.ok()) << result.status();
    });
  }

  // Of the steps after the saved one.
  std::vector<double> Losses(const std::string& run) const {
    std::vector<double> losses;
    const MetricsHistory history = ReadMetrics(Path(run)).value();
    for (const auto& [step, line] : history.steps) {
      if (step > kSavedStep) losses.push_back(line["loss"].get<double>());
    }
    return losses;
  }

  // Loads what is at `from` on a mesh and saves it in another run. Returns where.
  std::string SaveAgain(const MeshCase& mesh, const std::string& precision, const std::string& from,
                        const std::string& run) {
    const int64_t bytes = ReadManifest(from)->bytes() +
                          FileSystem::Get().FileSize(JoinPath(from, kManifestFile)).value();
    RunRanks(mesh.ranks, [&](Communicator& world) {
      const RunConfig config = Config(mesh, precision);
      const Mesh axes = MeshFor(config, world.size()).value();
      const RankGroups groups = MakeGroups(world, axes);
      const auto loader = Loader::Open(config.data, config.run.seed, config.model.vocab).value();
      const int64_t documents = loader->max_documents(config.batch.micro_batch);
      TrainStep step(StepOptionsFor(config, axes, {}, documents, world).value(), axes, groups);
      step.InitializeParameters(/*seed=*/99);
      const auto start = LoadStart(Path(run), {.resume = from}, config, *loader, step, world);
      ASSERT_TRUE(start.ok()) << start.status();
      EXPECT_EQ(start->bytes_read, bytes) << "not every byte is read once";
      step.optimizer().WaitForValues();
      Writer writer(Path(StrCat(run, "/checkpoints")), world, {});
      CheckpointInfo info = CheckpointInfoOf(config, axes, *loader, start->state);
      info.extra = ToJson(step.optimizer().counters());
      ASSERT_TRUE(writer.Begin(std::move(info), PiecesOf(step, /*owned=*/true)).ok());
      const auto saved = writer.Publish();
      ASSERT_TRUE(saved.ok()) << saved.status();
    });
    return Saved(run, kSavedStep);
  }

  static void ExpectSameBits(const std::string& got, const std::string& want) {
    const Checkpoint a = Checkpoint::Open(want).value(), b = Checkpoint::Open(got).value();
    const auto tensors = Compare(a, b);
    ASSERT_TRUE(tensors.ok()) << tensors.status();
    for (const TensorDifference& tensor : *tensors) {
      EXPECT_TRUE(tensor.equal()) << tensor.path << " of " << got << ": " << tensor.different
                                  << " elements of " << tensor.elements;
    }
    EXPECT_EQ(b.info().step, a.info().step);
    EXPECT_EQ(b.info().tokens, a.info().tokens);
    EXPECT_EQ(b.info().samples, a.info().samples);
    EXPECT_EQ(b.info().data, a.info().data);
    EXPECT_EQ(b.info().extra, a.info().extra);
  }

  TemporaryDirectory folder_;
};

// The mesh listed after `to`, or the one after that if it is `from`.
MeshCase NextBut(const MeshCase& from, const MeshCase& to) {
  const std::vector<MeshCase> meshes = Meshes();
  size_t i = 0;
  while (meshes[i].name != to.name) ++i;
  const MeshCase& next = meshes[(i + 1) % meshes.size()];
  return next.name == from.name ? meshes[(i + 2) % meshes.size()] : next;
}

class Moving : public SavedRuns,
               public testing::WithParamInterface<std::tuple<MeshCase, MeshCase>> {
 protected:
  // A sample read again, or left out, would show: each has other tokens.
  void Check(const std::string& precision, double tolerance) {
    const auto& [from, to] = GetParam();
    TrainOn(from, precision, "whole");
    const std::vector<double> want = Losses("whole");
    ASSERT_EQ(want.size(), kLastStep - kSavedStep);
    const std::string saved = Saved("whole", kSavedStep);

    TrainOn(to, precision, "other", saved);
    const std::vector<double> other = Losses("other");
    ASSERT_EQ(other.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_NEAR(other[i], want[i], tolerance * want[i]) << "step " << kSavedStep + 1 + i;
    }
    const auto end = ReadManifest(Saved("other", kLastStep));
    ASSERT_TRUE(end.ok()) << end.status();
    EXPECT_EQ(end->info.samples, kLastStep * kWindows);

    const std::string first = SaveAgain(to, precision, saved, "first");
    const std::string second = SaveAgain(NextBut(from, to), precision, first, "second");
    const std::string back = SaveAgain(from, precision, second, "back");
    for (const std::string& again : {first, second, back}) ExpectSameBits(again, saved);
    TrainOn(from, precision, "returned", back);
    EXPECT_EQ(Losses("returned"), want);
    ExpectSameBits(Saved("returned", kLastStep), Saved("whole", kLastStep));
  }
};

TEST_P(Moving, Float64) { Check("fp64", 1e-10); }
TEST_P(Moving, Float32) { Check("fp32", 1e-5); }

std::vector<std::tuple<MeshCase, MeshCase>> Pairs() {
  std::vector<std::tuple<MeshCase, MeshCase>> pairs;
  for (const MeshCase& from : Meshes()) {
    for (const MeshCase& to : Meshes()) {
      if (from.name != to.name) pairs.emplace_back(from, to);
    }
  }
  return pairs;
}

INSTANTIATE_TEST_SUITE_P(Meshes, Moving, testing::ValuesIn(Pairs()), [](const auto& info) {
  return StrCat(std::get<0>(info.param).name, "__", std::get<1>(info.param).name);
});

// Where all ranks hold everything, they still save a part each.
TEST_F(SavedRuns, ReplicasShareTheWriting) {
  const MeshCase dp3{"dp3", 3, 3, {"parallel.zero=0"}};
  TrainOn(dp3, "fp32", "run");
  const Manifest manifest = ReadManifest(Saved("run", kLastStep)).value();
  std::map<std::string, int64_t> bytes;
  int64_t all = 0;
  for (const StoredTensor& tensor : manifest.tensors) {
    for (const StoredBox& box : tensor.boxes) {
      bytes[box.file] += box.box.size() * SizeOf(tensor.dtype);
    }
    all += tensor.bytes();
  }
  ASSERT_EQ(bytes.size(), 3u);
  for (const auto& [file, written] : bytes) EXPECT_NEAR(written, all / 3, all / 30) << file;
}

}  // namespace
}  // namespace lt2
