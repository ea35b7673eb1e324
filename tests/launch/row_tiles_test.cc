// Where a row is worked on in tiles, training has the same bits on any number of ranks that share
// it (parallel/row_tiles.h): losses, every parameter's gradient, norms, and parameters after three
// steps. Ranks are threads.
#include <gtest/gtest.h>

#include "core/hash.h"
#include "core/strings.h"
#include "parallel/thread_communicator.h"
#include "tests/launch/parity.h"
#include "tests/model/mixer_cases.h"

namespace lt2 {
namespace {

constexpr int kTiles = 4;

class RowTilesParity : public testing::TestWithParam<MixerCase> {};

TEST_P(RowTilesParity, SameBitsForEachCp) {
  for (const uint64_t seed : {1, 2}) {
    const int64_t vocab = ConfigOf(GetParam()).vocab;
    const Problem problem =
        RandomProblem(vocab, {.cp = kTiles}, Hash64(GetParam().name) + seed, kTiles);
    SCOPED_TRACE(StrCat("seed ", seed, ": ", problem.ToString()));
    StepOptions options = OptionsOf(ConfigOf(GetParam(), problem.model), problem,
                                    {.name = "alone", .mesh = {}, .tiles = kTiles});
    options.dtype = DType::kF32;
    options.optimizer.clip = 0.1;  // norms count
    const Trace want = TrainAlone(options, problem);
    for (const int cp : {2, 4}) {
      options.zero = cp == 2;
      SCOPED_TRACE(StrCat("cp = ", cp));
      const MeshCase mesh_case{.name = "cp", .mesh = {.cp = cp}, .tiles = kTiles};
      options.micro_batches = problem.micro_batches;
      RunRanks(cp, [&](Communicator& world) {
        TrainAsRank(MakeGroups(world, mesh_case.mesh), mesh_case, options, problem, want,
                    Allowed::Nothing(want));
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Mixers, RowTilesParity, testing::ValuesIn(AllMixerCases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace lt2
