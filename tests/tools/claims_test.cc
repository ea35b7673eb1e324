// The claims of LT2 on small models of random weights: their direction, and what bounds them.
#include <gtest/gtest.h>

#include <cmath>

#include "tools/claims/claim_model.h"
#include "tools/claims/effective_rank.h"
#include "tools/claims/receptive_field.h"

namespace lt2 {
namespace {

constexpr int kLoops = 4;

std::vector<RankRow> RankOf(const std::string& kind, const std::string& options = "") {
  const ClaimModel model =
      RandomClaimModel(kind,
                       "width = 48\nlayers = 2\nheads = 3\nffn = 64\nvocab = 256\nloops = 4\n"
                       "mixers = ['" +
                           kind + "']\n[" + kind + "]\n" + options,
                       3);
  const std::vector<int32_t> ids = *SampleBytes(1, 6, 3);
  return MeasureRank(*model.model, ids, 3);
}

TEST(Claims, SingularValuesOfAProductOfKnownOnes) {
  // [3 0; 0 2; 0 0] turned on both sides.
  const double a = 0.3, b = 1.1;
  std::vector<double> m(6, 0.0);
  const double u[3][2] = {{std::cos(a), -std::sin(a)}, {std::sin(a), std::cos(a)}, {0, 0}};
  const double v[2][2] = {{std::cos(b), -std::sin(b)}, {std::sin(b), std::cos(b)}};
  for (int i = 0; i < 3; ++i) {
    for (int j = 0; j < 2; ++j) m[i * 2 + j] = 3 * u[i][0] * v[j][0] + 2 * u[i][1] * v[j][1];
  }
  const std::vector<double> s = SingularValues(m, 3, 2);
  EXPECT_NEAR(s[0], 3, 1e-12);
  EXPECT_NEAR(s[1], 2, 1e-12);
}

// T loops of a delta rule add rank T, and their effective rank grows with T.
TEST(Claims, TheRankOfADeltaRulesUpdateGrowsWithTheLoops) {
  for (const char* kind : {"deltanet", "gdn", "kda"}) {
    SCOPED_TRACE(kind);
    const std::vector<RankRow> rows =
        RankOf(kind, kind == std::string("gdn") ? "head_dim = 16" : "");
    ASSERT_EQ(rows.size(), size_t{kLoops});
    EXPECT_NEAR(rows[0].effective, 1, 1e-6);
    for (int t = 0; t < kLoops; ++t) {
      EXPECT_EQ(rows[t].rank, t + 1) << "T = " << t + 1;
      if (t == 0) continue;
      EXPECT_GT(rows[t].effective, rows[t - 1].effective) << "T = " << t + 1;
      EXPECT_LT(rows[t].effective, t + 1);
    }
    EXPECT_GT(rows[kLoops - 1].effective, 1.5);
  }
}

// A diagonal decay never couples channels, whatever the loops.
TEST(Claims, AnAdditiveStateGainsNoRank) {
  for (const char* kind : {"linear", "retnet", "gla", "hgrn2", "mamba2"}) {
    SCOPED_TRACE(kind);
    for (const RankRow& row : RankOf(kind)) EXPECT_EQ(row.rank, 0);
  }
}

// T loops of L layers reach exactly T L (w − 1) tokens back; what they see in effect grows too, but
// falls ever further behind.
TEST(Claims, TheWindowsFieldGrowsWithTheLoops) {
  constexpr int64_t kWindow = 6, kLength = 40, kRows = 8;
  for (int layers : {1, 2}) {
    SCOPED_TRACE(layers);
    const ClaimModel model = RandomClaimModel(
        "window",
        "width = 48\nheads = 3\nffn = 64\nvocab = 256\nloops = 3\nmixers = ['window']\nlayers = " +
            std::to_string(layers) + "\n[window]\nwindow = 6\n",
        5);
    const std::vector<int32_t> ids = *SampleBytes(kRows, kLength, 5);
    int64_t seen = 0;
    double last_share = 2;
    for (int64_t loops = 1; loops <= 3; ++loops) {
      SCOPED_TRACE(loops);
      const ReceptiveField field = MeasureField(*model.model, loops, ids, kLength, 5);
      const int64_t reach = loops * layers * (kWindow - 1);
      EXPECT_EQ(field.reach, reach);
      for (int64_t d = 0; d < kLength; ++d) EXPECT_EQ(field.influence[d] > 0, d <= reach) << d;
      const int64_t within = field.Within(0.9);
      EXPECT_GT(within, seen);
      EXPECT_LE(within, reach);
      const double share = static_cast<double>(within) / static_cast<double>(reach);
      EXPECT_LT(share, last_share);
      seen = within;
      last_share = share;
    }
  }
}

// Two runs give the same bits.
TEST(Claims, TheFieldIsDeterministic) {
  const auto once = [] {
    const ClaimModel model = RandomClaimModel("window",
                                              "width = 32\nheads = 2\nffn = 32\nvocab = 256\nloops "
                                              "= 2\nlayers = 1\nmixers = ['window']\n[window]\n"
                                              "window = 4\n",
                                              7);
    return MeasureField(*model.model, 2, *SampleBytes(3, 12, 7), 12, 7).influence;
  };
  EXPECT_EQ(once(), once());
}

}  // namespace
}  // namespace lt2
