#include "launch/legal_mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "core/strings.h"

namespace lt2 {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// lt2-tiny: 5 layers, 4 heads, and 2 micro-batches of 4 x 256 tokens a step.
RunConfig Tiny(std::vector<std::string> sets = {}) { return *LoadRunConfig("lt2-tiny", sets); }

TEST(LegalMesh, AreAllProductsWithoutProblems) {
  const RunConfig config = Tiny({"batch.tokens=8192"});
  for (const int ranks : {1, 6, 8, 12, 40}) {
    std::vector<Mesh> wanted;
    for (int pp = 1; pp <= ranks; ++pp) {
      for (int tp = 1; tp <= ranks; ++tp) {
        for (int cp = 1; cp <= ranks; ++cp) {
          if (ranks % (pp * tp * cp) != 0) continue;
          const Mesh mesh{.pp = pp, .dp = ranks / (pp * tp * cp), .cp = cp, .tp = tp};
          const bool heads = tp == 1 || tp == 2 || tp == 4;
          const int micro_batches = 8 % mesh.dp == 0 ? 8 / mesh.dp : 0;
          if (heads && pp <= 5 && micro_batches >= pp) wanted.push_back(mesh);
        }
      }
    }
    EXPECT_THAT(LegalMeshes(config, ranks), testing::UnorderedElementsAreArray(wanted)) << ranks;
  }
}

TEST(LegalMesh, RowsInTilesAreSharedByRanksOfOneStage) {
  const std::vector<Mesh> legal =
      LegalMeshes(Tiny({"batch.tokens=8192", "parallel.row_tiles=4"}), 16);
  EXPECT_EQ(legal.size(), 8);
  for (const Mesh& mesh : legal) {
    EXPECT_EQ(mesh.pp, 1);
    EXPECT_THAT(mesh.cp, testing::AnyOf(1, 2, 4));
  }
}

std::string Refusal(const std::vector<std::string>& sets, int ranks) {
  return std::string(MeshFor(Tiny(sets), ranks).status().message());
}

TEST(LegalMesh, OneMessageSaysAllThatIsWrongAndAllThatIsLegal) {
  EXPECT_EQ(MeshFor(Tiny(), 2)->dp, 2);
  EXPECT_EQ(Refusal({}, 2), "");
  EXPECT_EQ(Refusal({}, 3),
            "parallel: dp = 3: batch.tokens 2048 is not a multiple of data.sequence 256 × "
            "batch.micro_batch 4 × dp = 3072. Axes not named being 1, legal on 3 ranks: cp=3");
  EXPECT_THAT(Refusal({"parallel.dp=2", "parallel.cp=3"}, 4),
              AllOf(HasSubstr("dp × cp × tp × pp = 2 × 3 × 1 × 1 does not make 4; start 6"),
                    HasSubstr("legal on 4 ranks: dp=2,cp=2; cp=4; dp=2,tp=2; cp=2,tp=2; tp=4; "
                              "pp=2,cp=2; pp=2,tp=2")));
  EXPECT_THAT(Refusal({"parallel.tp=2"}, 3),
              AllOf(HasSubstr("auto × 1 × 2 × 1 does not make 3"), HasSubstr("cp=3"),
                    Not(HasSubstr("batch.tokens"))));
}

TEST(LegalMesh, StagesNeedLayersAndMicroBatches) {
  const RunConfig config = Tiny({"batch.tokens=8192"});
  const auto problems = [&](const Mesh& mesh) {
    const std::vector<std::string> all = MeshProblems(config, mesh);
    return all.empty() ? "" : all[0];
  };
  EXPECT_EQ(problems({.pp = 4}), "");
  EXPECT_EQ(problems({.pp = 6}), "pp = 6: a stage needs a layer, and there are 5");
  EXPECT_THAT(problems({.pp = 4, .dp = 4}), HasSubstr("pp = 4: as many micro-batches as stages"));
  EXPECT_THAT(problems({.pp = 4, .dp = 4}), HasSubstr("× dp 4) = 2"));
  EXPECT_THAT(problems({.cp = 2000}), HasSubstr("1024 tokens, fewer than one a rank"));
  EXPECT_THAT(problems({.tp = 3}), HasSubstr("legal: 1, 2, 4"));
}

TEST(LegalMesh, WhereNoneIsLegalNearbyNumbersAreNamed) {
  // Rows of 4 tokens: no more than 4 ranks share one.
  const std::vector<std::string> few = {"batch.tokens=4", "batch.micro_batch=1", "data.sequence=4",
                                        "schedule.warmup=0 steps"};
  EXPECT_THAT(Refusal(few, 7), HasSubstr("no mesh of 7 ranks is legal; start 6 or 8"));
}

}  // namespace
}  // namespace lt2
