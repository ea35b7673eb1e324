// Ranks as threads that share one GPU: training on a mesh is the same as on one rank there
// (tests/launch/parity.h), by the GPU's kernels. Ends with code 77 without a GPU.
// LT2_PARITY_ALL=1: every mixer on every mesh in both precisions; LT2_PARITY_SEEDS: how many
// problems each gets (1).
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "core/cuda.h"
#include "core/hash.h"
#include "core/strings.h"
#include "parallel/thread_communicator.h"
#include "tests/launch/parity.h"
#include "tests/model/mixer_cases.h"

namespace lt2 {
namespace {

constexpr Device kGpu{Backend::kCuda};

struct Case {
  MixerCase mixer;
  MeshCase mesh;
  DType dtype;
};
void PrintTo(const Case& c, std::ostream* os) { *os << c.mixer.name << " on " << c.mesh.name; }

// Those that every mixer takes come first.
constexpr size_t kForAll = 3;
std::vector<MeshCase> Meshes() {
  return {{"cp2", {.cp = 2}},
          {.name = "tp2_sp", .mesh = {.tp = 2}, .zero = 1, .sequence = true},
          {.name = "pp2_ring_zb", .mesh = {.pp = 2}, .pipeline = Pipeline::kRingZb},
          {"cp3_zero1", {.cp = 3}, 1},
          {"tp2", {.tp = 2}},
          {"pp2_ring", {.pp = 2}},
          {"cp2_tp2", {.cp = 2, .tp = 2}, 1, StateExchange::kChain},
          {"dp2_zero2", {.dp = 2}, 2}};
}

// In float32 every mixer on some meshes and, in turn, on one of the others; in bfloat16 each on
// one. Where rounding decides which keys are read, bfloat16 trains another way.
std::vector<Case> Cases() {
  const bool all = std::getenv("LT2_PARITY_ALL") != nullptr;
  const std::vector<MeshCase> meshes = Meshes();
  const size_t others = meshes.size() - kForAll;
  std::vector<Case> cases;
  size_t turn = 0;
  for (const MixerCase& mixer : AllMixerCases()) {
    for (size_t m = 0; m < meshes.size(); ++m) {
      if (all || m < kForAll || m - kForAll == turn % others) {
        cases.push_back({mixer, meshes[m], DType::kF32});
      }
      if (!ChoosesKeys(mixer) && (all || m == turn % meshes.size())) {
        cases.push_back({mixer, meshes[m], DType::kBF16});
      }
    }
    ++turn;
  }
  return cases;
}

// As runs have it (launch/environment.h).
void PutOnGpu(StepOptions& options, DType dtype) {
  options.device = kGpu;
  options.dtype = dtype;
  options.rebuild = dtype == DType::kBF16 ? Rebuild::kCheap : Rebuild::kNothing;
}

// Whether all ranks along cp have as many tokens is left to chance, but not where they are three.
bool Fits(const Problem& problem, const Mesh& mesh) {
  return mesh.cp != 3 || problem.tokens % mesh.cp != 0;
}

class ThreadsParity : public testing::TestWithParam<Case> {
 protected:
  // False if rounding makes too much of the problem to tell.
  bool Check(const Problem& problem) {
    const auto& [mixer, mesh, dtype] = GetParam();
    StepOptions options = OptionsOf(ConfigOf(mixer, problem.model), problem, mesh);
    const Trace exact = TrainAlone(options, problem);
    PutOnGpu(options, dtype);
    const Rounded rounded = TrainRounded(options, problem);
    if (dtype == DType::kF32 && !Resolves(rounded.want, exact)) return false;
    const Allowed allowed(dtype, rounded, exact);
    RunRanksOnGpu(mesh.mesh.size(), kGpu, [&](Communicator& world) {
      TrainAsRank(MakeGroups(world, mesh.mesh), mesh, options, problem, rounded.want, allowed);
    });
    return true;
  }
};

TEST_P(ThreadsParity, TrainsAsOneRankDoes) {
  const auto& [mixer, mesh, dtype] = GetParam();
  const char* wanted = std::getenv("LT2_PARITY_SEEDS");
  const int64_t problems = wanted == nullptr ? 1 : std::atoll(wanted);
  constexpr uint64_t kMostSeeds = 1000;
  int64_t checked = 0;
  for (uint64_t seed = 1; checked < problems && !HasFailure(); ++seed) {
    ASSERT_LT(seed, kMostSeeds) << "no problem that rounding leaves alone";
    const Problem problem = RandomProblem(ConfigOf(mixer).vocab, mesh.mesh,
                                          Hash64(StrCat(mixer.name, mesh.name, seed)));
    if (!Fits(problem, mesh.mesh)) continue;
    SCOPED_TRACE(StrCat("seed ", seed, ": ", problem.ToString()));
    const TensorSplit split{.ranks = mesh.mesh.tp, .sequence = mesh.sequence};
    const absl::Status divides = CheckSplit(ConfigOf(mixer, problem.model), split);
    if (!divides.ok()) GTEST_SKIP() << divides;
    checked += Check(problem);
  }
}

INSTANTIATE_TEST_SUITE_P(, ThreadsParity, testing::ValuesIn(Cases()), [](const auto& info) {
  return StrCat(info.param.mixer.name, "_", info.param.mesh.name, "_", Name(info.param.dtype));
});

}  // namespace
}  // namespace lt2

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (lt2::cuda::DeviceCount() == 0 && !testing::GTEST_FLAG(list_tests)) {
    std::printf("skipped: there is no GPU here\n");
    return 77;
  }
  return RUN_ALL_TESTS();
}
