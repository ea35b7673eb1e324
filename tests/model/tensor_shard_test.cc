// Layers that tensor-parallel ranks divide, against one rank: outputs, input gradients and every
// parameter's gradient, for every mixer under random options, on random ragged documents. Ranks are
// threads.
#include <gtest/gtest.h>

#include <mutex>
#include <random>

#include "core/hash.h"
#include "core/strings.h"
#include "kernels/case.h"
#include "parallel/thread_communicator.h"
#include "tests/model/mixer_cases.h"
#include "tests/support/tiny_model.h"

namespace lt2 {
namespace {

constexpr double kTolerance = 1e-10;

struct SplitCase {
  MixerCase mixer_case;
  TensorSplit split;

  std::string name() const {
    return StrCat(mixer_case.name, "_tp", split.ranks, split.sequence ? "_sequence" : "");
  }
};
void PrintTo(const SplitCase& split_case, std::ostream* os) { *os << split_case.name(); }

// All that the mixer's heads allow.
std::vector<SplitCase> AllSplitCases() {
  std::vector<SplitCase> cases;
  for (const MixerCase& mixer_case : AllMixerCases()) {
    for (const int ranks : {2, 4}) {
      if (!CheckSplit(ConfigOf(mixer_case), {ranks}).ok()) continue;
      for (const bool sequence : {false, true}) cases.push_back({mixer_case, {ranks, sequence}});
    }
  }
  return cases;
}

struct Problem {
  ModelConfig config;
  RecomputePolicy recompute = RecomputePolicy::kNone;
  std::vector<int32_t> cu_seqlens;
  uint64_t seed = 0;
  int changed = -1;  // of this document the tokens are others
  int64_t tokens() const { return cu_seqlens.back(); }
};

Problem RandomProblem(const MixerCase& mixer_case, uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto flip = [&] { return random() % 2 ? "true" : "false"; };
  Problem problem{.config = ConfigOf(
                      mixer_case, {StrCat("loops=", random() % 2 ? 1 : 3),
                                   StrCat("sandwich_norm=", flip()), StrCat("loop_norm=", flip())}),
                  .recompute = std::array{RecomputePolicy::kNone, RecomputePolicy::kFfn,
                                          RecomputePolicy::kMixer, RecomputePolicy::kBlock,
                                          RecomputePolicy::kLoop}[random() % 5],
                  .cu_seqlens = {0, std::array{9, 50, 131}[random() % 3]},
                  .seed = seed};
  const int32_t tokens = problem.cu_seqlens.back();
  // With documents of a token or two some gradients are all rounding: of decays, of keys.
  for (uint64_t n = random() % 5; n > 0 && tokens > 9; --n) {
    problem.cu_seqlens.push_back(static_cast<int32_t>(1 + random() % (tokens - 1)));
  }
  std::ranges::sort(problem.cu_seqlens);
  const auto repeated = std::ranges::unique(problem.cu_seqlens);
  problem.cu_seqlens.erase(repeated.begin(), repeated.end());
  return problem;
}

// Of all tokens, and whole parameters.
struct Result {
  std::vector<double> y, dx, auxiliary;
  LoopDiagnostics diagnostics;
  std::map<std::string, std::vector<double>> grads;
};

// What one rank has of it. Gradients that ranks have summands of are added to result->grads; the
// others are returned.
Result RunStack(const Problem& problem, const TensorSplit& split, TensorShard* shard,
                std::map<std::string, std::vector<double>>* sums) {
  const ModelConfig& config = problem.config;
  Stream stream;
  ParamSet params;
  LoopedStack stack(config, ParamScope(params), split);
  for (Param* param : params.all()) {
    HoldPart(*param, split, shard != nullptr ? shard->rank() : 0);
    BindRandom(*param, DType::kF64, stream.device, problem.seed);
    const bool final_norm = param == stack.norm() && !config.loop_norm;
    param->ExpectUses(final_norm ? 0 : static_cast<int>(config.loops) * params.Sites(param));
  }
  const bool shares = shard != nullptr && shard->sequence();
  const int64_t first = shares ? shard->Begin(shard->rank()) : 0;
  const int64_t end = shares ? shard->Begin(shard->rank() + 1) : problem.tokens();
  const auto rows = [&](const char* name) {
    const Shape all = {problem.tokens(), config.width};
    std::vector<double> values = RandomNormal(problem.seed, name, all).values;
    if (name == std::string("x") && problem.changed >= 0) {
      const std::vector<double> others = RandomNormal(problem.seed, "other x", all).values;
      const int64_t begin = problem.cu_seqlens[problem.changed] * config.width;
      std::copy(others.begin() + begin,
                others.begin() + problem.cu_seqlens[problem.changed + 1] * config.width,
                values.begin() + begin);
    }
    return Tensor::FromHost(values, all, DType::kF64, {}).Rows(first, end).Clone();
  };
  const Documents documents = Documents::Of(problem.cu_seqlens, stream.device);
  Result result;
  Tape tape(stream);
  const Var x = tape.Input(rows("x"), /*needs_grad=*/true);
  const LoopedStack::Output out = stack.Forward(
      tape, x, documents,
      {.recompute = problem.recompute, .diagnostics = &result.diagnostics, .tensor = shard});
  std::vector<Tape::Seed> seeds = {{out.h_ND, rows("dy")}};
  for (const Var& own : out.auxiliary_losses) {
    seeds.push_back({own, Tensor::FromHost(std::vector<double>{1}, {1}, DType::kF64, {})});
    result.auxiliary.push_back(own.value.ToDoubles()[0]);
  }
  result.y = out.h_ND.value.ToDoubles();
  result.dx = tape.Backward(std::move(seeds), std::span(&x, 1))[0].ToDoubles();
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  for (const Param* param : params.all()) {
    EXPECT_EQ(param->outstanding(), 0) << param->spec.name;
    const bool whole = shard == nullptr || param->spec.split.whole_gradient;
    AddHeld(*param, &(whole ? result.grads : *sums)[param->spec.name]);
  }
  return result;
}

void ExpectNear(const std::vector<double>& got, const std::vector<double>& want,
                const std::string& name = "") {
  EXPECT_LE(RelativeDifference(got, want), kTolerance) << name;
}

// What a rank has, held to one rank's.
void ExpectSame(const Result& got, const Result& want, const TensorShard& shard) {
  const auto own = [&](const std::vector<double>& rows) {
    const int64_t width = static_cast<int64_t>(rows.size()) / shard.tokens();
    const bool shares = shard.sequence();
    return std::vector(rows.begin() + (shares ? shard.Begin(shard.rank()) * width : 0),
                       shares ? rows.begin() + shard.Begin(shard.rank() + 1) * width : rows.end());
  };
  ExpectNear(got.y, own(want.y));
  ExpectNear(got.dx, own(want.dx));
  ExpectNear(got.auxiliary, want.auxiliary);
  const LoopDiagnostics &seen = got.diagnostics, &wanted = want.diagnostics;
  ExpectNear(seen.hidden_rms, wanted.hidden_rms);
  ExpectNear(seen.gradient_norm, wanted.gradient_norm);
  ExpectNear(seen.first_token_mass, wanted.first_token_mass);
  for (const auto& [name, grad] : got.grads) {
    ExpectNear(grad, want.grads.at(name), name);
  }
}

class TensorShardTest : public testing::TestWithParam<SplitCase> {};

TEST_P(TensorShardTest, IsAsOneRank) {
  const TensorSplit& split = GetParam().split;
  for (uint64_t n = 0; n < 2; ++n) {
    const uint64_t seed = Hash64(GetParam().name()) + n;
    SCOPED_TRACE(StrCat("seed ", seed));
    const Problem problem = RandomProblem(GetParam().mixer_case, seed);
    const Result want = RunStack(problem, {}, nullptr, nullptr);
    std::map<std::string, std::vector<double>> sums;
    static std::mutex one_at_a_time;
    size_t whole = 0;
    RunRanks(split.ranks, [&](Communicator& tp) {
      TensorShard shard(tp, split.sequence, problem.tokens());
      const Result got = RunStack(problem, split, &shard, &sums);
      const std::lock_guard lock(one_at_a_time);
      SCOPED_TRACE(StrCat("rank ", tp.rank()));
      ExpectSame(got, want, shard);
      whole = got.grads.size();
    });
    EXPECT_EQ(whole + sums.size(), want.grads.size());
    EXPECT_EQ(whole > 0, !split.sequence);
    for (const auto& [name, grad] : sums) {
      ExpectNear(grad, want.grads.at(name), name);
    }
  }
}

TEST_P(TensorShardTest, DocumentsDoNotSeeEachOther) {
  const TensorSplit& split = GetParam().split;
  Problem problem = RandomProblem(GetParam().mixer_case, Hash64(GetParam().name()));
  problem.cu_seqlens = {0, 5, 37, 51};
  RunRanks(split.ranks, [&](Communicator& tp) {
    TensorShard shard(tp, split.sequence, problem.tokens());
    std::map<std::string, std::vector<double>> sums;
    const Result before = RunStack(problem, split, &shard, &sums);
    const int64_t first = split.sequence ? shard.Begin(tp.rank()) : 0;
    for (int changed = 0; changed < 3; ++changed) {
      Problem other = problem;
      other.changed = changed;
      const Result after = RunStack(other, split, &shard, &sums);
      for (size_t i = 0; i < before.y.size(); ++i) {
        const int64_t token = first + static_cast<int64_t>(i) / problem.config.width;
        if (problem.cu_seqlens[changed] <= token && token < problem.cu_seqlens[changed + 1])
          continue;
        ASSERT_EQ(after.y[i], before.y[i]) << "document " << changed << ", token " << token;
        ASSERT_EQ(after.dx[i], before.dx[i]) << "document " << changed << ", token " << token;
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Mixers, TensorShardTest, testing::ValuesIn(AllSplitCases()),
                         [](const auto& info) { return info.param.name(); });

// What a rank gives in a layer visit, forward and backward, is the formula of parallel/README.md,
// whether or not tokens are shared out. A second layer shows it: of the first one's step a few
// numbers belong to the loop's diagnostics.
TEST(TensorTraffic, IsTheFormula) {
  struct Kind {
    const char* name;
    int64_t more;  // numbers a token, beyond those of the ways into two halves and out of them
  };
  for (const Kind kind : {Kind{"full", 0}, {"gdn", 0}, {"mamba2", 2}, {"hgrn2", 2}, {"dsa", 8}}) {
    const std::vector<MixerCase> cases = AllMixerCases();
    const MixerCase& mixer_case = *std::ranges::find(cases, kind.name, &MixerCase::name);
    for (const TensorSplit& split : {TensorSplit{2}, {4}, {2, /*sequence=*/true}, {4, true}}) {
      for (const int32_t tokens : {24, 48}) {
        SCOPED_TRACE(StrCat(kind.name, ", ", split.ranks, " ranks, shares ", split.sequence, ", ",
                            tokens, " tokens"));
        RunRanks(split.ranks, [&](Communicator& tp) {
          const auto given = [&](int layers) {
            const Problem problem{
                .config = ConfigOf(mixer_case, {"loops=1", StrCat("layers=", layers)}),
                .cu_seqlens = {0, 11, tokens}};
            const int64_t before = tp.traffic().bytes;
            TensorShard shard(tp, split.sequence, tokens);
            std::map<std::string, std::vector<double>> sums;
            RunStack(problem, split, &shard, &sums);
            return tp.traffic().bytes - before;
          };
          const int64_t width = ConfigOf(mixer_case).width;
          EXPECT_EQ(given(2) - given(1), 8 * tokens * (4 * width + kind.more));
        });
      }
    }
  }
}

// Rows that travel in pieces while products go on have the bits of rows that travel at once.
TEST(RowSums, PiecesChangeNoBitAndNoByte) {
  const std::vector<MixerCase> cases = AllMixerCases();
  for (const char* name : {"full", "gdn", "mamba2", "dsa"}) {
    const MixerCase& mixer_case = *std::ranges::find(cases, name, &MixerCase::name);
    for (const int ranks : {2, 4}) {
      for (const RecomputePolicy recompute : {RecomputePolicy::kNone, RecomputePolicy::kBlock}) {
        SCOPED_TRACE(StrCat(name, ", ", ranks, " ranks, recompute ", Name(recompute)));
        const Problem problem{.config = ConfigOf(mixer_case, {"loops=2", "layers=2"}),
                              .recompute = recompute,
                              .cu_seqlens = {0, 100, 531},
                              .seed = 7};
        RunRanks(ranks, [&](Communicator& tp) {
          const auto run = [&](int64_t most, std::map<std::string, std::vector<double>>* sums) {
            TensorShard shard(tp, /*sequence=*/true, problem.tokens(),
                              {.least_rows = 40, .most = most});
            const int64_t before = tp.traffic().bytes;
            const Result result = RunStack(problem, {ranks, true}, &shard, sums);
            return std::pair(result, tp.traffic().bytes - before);
          };
          std::map<std::string, std::vector<double>> whole_sums, sums;
          const auto [whole, bytes] = run(1, &whole_sums);
          const auto [pieces, bytes_in_pieces] = run(3, &sums);
          EXPECT_EQ(pieces.y, whole.y);
          EXPECT_EQ(pieces.dx, whole.dx);
          EXPECT_EQ(sums, whole_sums);
          EXPECT_EQ(bytes_in_pieces, bytes);
        });
      }
    }
  }
}

// What a rank computes with is the part that its split says.
TEST(TensorSplit, EveryMixerIsDividedOrRefused) {
  std::set<std::string> divided;
  for (const SplitCase& split_case : AllSplitCases()) {
    divided.insert(split_case.mixer_case.mixers[0]);
  }
  for (const MixerCase& mixer_case : AllMixerCases()) {
    EXPECT_TRUE(divided.contains(mixer_case.mixers[0])) << mixer_case.name;
  }
}

}  // namespace
}  // namespace lt2
