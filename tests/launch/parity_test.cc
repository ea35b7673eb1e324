// Whatever the mesh, training is the same (tests/launch/parity.h). Ranks are threads.
// LT2_PARITY_SEEDS: how many problems a case and mesh gets (1); LT2_PARITY_SEED: the first.
#include "tests/launch/parity.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "core/hash.h"
#include "core/strings.h"
#include "parallel/thread_communicator.h"
#include "tests/model/mixer_cases.h"

namespace lt2 {
namespace {

std::vector<MeshCase> Meshes() {
  std::vector<MeshCase> meshes = {
      {"dp2", {.dp = 2}},
      {"dp2_zero1", {.dp = 2}, 1},
      {"dp2_zero2", {.dp = 2}, 2},
      {"dp4_zero2", {.dp = 4}, 2},
      {"cp2", {.cp = 2}},
      {"cp3_zero1", {.cp = 3}, 1},
      {"cp4", {.cp = 4}},
      {"cp2_chain", {.cp = 2}, 0, StateExchange::kChain},
      {"cp4_chain_zero1", {.cp = 4}, 1, StateExchange::kChain},
      {"dp2_cp2_zero1", {.dp = 2, .cp = 2}, 1},
      {"dp2_cp2_zero2", {.dp = 2, .cp = 2}, 2},
      {"tp2", {.tp = 2}},
      {"tp2_sp_zero1", {.tp = 2}, 1, StateExchange::kAuto, true},
      {"tp4_sp", {.tp = 4}, 0, StateExchange::kAuto, true},
      {"cp2_tp2_zero1", {.cp = 2, .tp = 2}, 1},
      {"cp2_tp2_sp", {.cp = 2, .tp = 2}, 0, StateExchange::kChain, true},
      {"dp2_tp2_zero2", {.dp = 2, .tp = 2}, 2},
      {"dp2_tp2_sp_zero1", {.dp = 2, .tp = 2}, 1, StateExchange::kAuto, true},
      {.name = "cp2_tiles4_zero1", .mesh = {.cp = 2}, .zero = 1, .tiles = 4},
      {.name = "dp2_cp2_tp2_tiles4", .mesh = {.dp = 2, .cp = 2, .tp = 2}, .tiles = 4}};
  for (const auto& [name, pipeline] :
       {std::pair{"ring", Pipeline::kRing}, std::pair{"ring_zb", Pipeline::kRingZb}}) {
    const auto add = [&, pipeline = pipeline, name = name](const std::string& axes,
                                                           const Mesh& mesh, int zero,
                                                           bool sequence = false) {
      meshes.push_back({.name = StrCat(axes, "_", name),
                        .mesh = mesh,
                        .zero = zero,
                        .sequence = sequence,
                        .pipeline = pipeline});
    };
    add("pp2", {.pp = 2}, 0);
    add("pp4", {.pp = 4}, 1);
    add("pp2_dp2_zero1", {.pp = 2, .dp = 2}, 1);
    add("pp2_tp2_sp", {.pp = 2, .tp = 2}, 0, /*sequence=*/true);
    add("pp2_cp2", {.pp = 2, .cp = 2}, 0);
    add("pp2_dp2_zero2", {.pp = 2, .dp = 2}, 2);
  }
  return meshes;
}

int64_t FromEnvironment(const char* name, int64_t fallback) {
  const char* text = std::getenv(name);
  return text == nullptr ? fallback : std::atoll(text);
}

constexpr int64_t kMostSeeds = 1000;

class Parity : public testing::TestWithParam<std::tuple<MixerCase, MeshCase>> {
 protected:
  void Check(DType dtype) {
    const auto& [mixer_case, mesh_case] = GetParam();
    const uint64_t base = Hash64(StrCat(mixer_case.name, mesh_case.name));
    const int64_t first = FromEnvironment("LT2_PARITY_SEED", 1);
    bool checked = false;
    for (int64_t n = 0; n < FromEnvironment("LT2_PARITY_SEEDS", 1) || !checked; ++n) {
      ASSERT_LT(n, kMostSeeds) << "no problem that rounding leaves alone";
      const int64_t seed = first + n;
      const int64_t vocab = ConfigOf(mixer_case).vocab;
      const Problem problem = RandomProblem(vocab, mesh_case.mesh, base + seed, mesh_case.tiles);
      SCOPED_TRACE(StrCat("LT2_PARITY_SEED=", seed, ": ", problem.ToString()));
      const TensorSplit split{.ranks = mesh_case.mesh.tp, .sequence = mesh_case.sequence};
      const absl::Status divides = CheckSplit(ConfigOf(mixer_case, problem.model), split);
      if (!divides.ok()) GTEST_SKIP() << divides;
      StepOptions options = OptionsOf(ConfigOf(mixer_case, problem.model), problem, mesh_case);
      StepOptions alone = options;
      alone.row_tiles = 1;
      const Trace exact = TrainAlone(alone, problem);
      options.dtype = alone.dtype = dtype;
      const Rounded rounded =
          dtype == DType::kF64 ? Rounded{.want = exact} : TrainRounded(alone, problem);
      const Trace& want = rounded.want;
      if (!Resolves(want, exact)) continue;
      const Allowed allowed(dtype, rounded, exact);
      checked = true;
      RunRanks(mesh_case.mesh.size(), [&](Communicator& world) {
        TrainAsRank(MakeGroups(world, mesh_case.mesh), mesh_case, options, problem, want, allowed);
      });
      if (HasFailure()) return;
    }
  }
};

TEST_P(Parity, Float64) { Check(DType::kF64); }
TEST_P(Parity, Float32) { Check(DType::kF32); }

INSTANTIATE_TEST_SUITE_P(Mixers, Parity,
                         testing::Combine(testing::ValuesIn(AllMixerCases()),
                                          testing::ValuesIn(Meshes())),
                         [](const auto& info) {
                           return StrCat(std::get<0>(info.param).name, "_",
                                         std::get<1>(info.param).name);
                         });

}  // namespace
}  // namespace lt2
