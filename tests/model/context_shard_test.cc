// Mixers over tokens that several ranks share: what holds bit for bit.
#include <gtest/gtest.h>

#include <mutex>

#include "core/allocator.h"
#include "core/philox.h"
#include "core/strings.h"
#include "kernels/case.h"
#include "kernels/init.h"
#include "model/mixers/registry.h"
#include "parallel/thread_communicator.h"
#include "tests/model/mixer_cases.h"

namespace lt2 {
namespace {

constexpr int64_t kTokens = 151;
const std::vector<int32_t> kDocuments = {0, 7, 55, 130, 151};

// One mixer's outputs and input gradients, of all tokens.
struct Result {
  std::vector<double> y, dx;
};

std::vector<double> RandomRows(uint64_t seed, const char* name, int64_t width) {
  return RandomNormal(seed, name, {kTokens, width}).values;
}

// The case's first mixer with parameters, for one forward.
struct BoundMixer {
  BoundMixer(const MixerCase& mixer_case, DType dtype, Device device)
      : mixer(MakeMixer(mixer_case.mixers[0], ConfigOf(mixer_case),
                        {.scope = ParamScope(params), .root = ParamScope(params), .layers = 1})) {
    for (Param* param : params.all()) {
      param->BindValue(Tensor::Empty(param->spec.shape, dtype, device));
      param->BindGradient(Tensor::Zeros(param->spec.shape, dtype, device));
      if (device.backend != Backend::kMeta) InitParam(*param, /*seed=*/3);
      param->ExpectUses(1);
    }
  }

  ParamSet params;
  const std::unique_ptr<Mixer> mixer;
};

// Runs the case's first mixer on this rank's tokens. The shard may be null: then on all of them.
void RunMixer(const MixerCase& mixer_case, DType dtype, const std::vector<double>& x,
              ContextShard* shard, Result* result) {
  const ModelConfig config = ConfigOf(mixer_case);
  const BoundMixer bound(mixer_case, dtype, {});
  const Documents alone = Documents::Of(kDocuments, {});
  const Documents& documents = shard != nullptr ? shard->documents() : alone;
  const int64_t begin = shard != nullptr ? shard->begin() : 0, tokens = documents.tokens();
  const auto own = [&](const std::vector<double>& rows) {
    return Tensor::FromHost(std::span(rows).subspan(begin * config.width, tokens * config.width),
                            {tokens, config.width}, dtype, {});
  };
  Stream stream;
  Tape tape(stream);
  const Var in = tape.Input(own(x), /*needs_grad=*/true);
  const MixerOutput out = bound.mixer->Forward(tape, in, {.documents = documents, .shard = shard});
  std::vector<Tape::Seed> seeds = {
      {out.y_ND,
       own(RandomNormal(9, "dy", {static_cast<int64_t>(x.size()) / config.width, config.width})
               .values)}};
  if (out.auxiliary_loss.value.defined()) {
    seeds.push_back(
        {out.auxiliary_loss, Tensor::FromHost(std::vector<double>{1}, {1}, DType::kF64, {})});
  }
  const Tensor dx = tape.Backward(std::move(seeds), std::span(&in, 1))[0];
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  const auto put = [&](const Tensor& rows, std::vector<double>& to) {
    to.resize(std::max<size_t>(to.size(), x.size()));
    std::ranges::copy(rows.ToDoubles(), to.begin() + begin * config.width);
  };
  put(out.y_ND.value, result->y);
  put(dx, result->dx);
}

Result RunOnRanks(int ranks, const MixerCase& mixer_case, DType dtype, const std::vector<double>& x,
                  StateExchange exchange) {
  Result result;
  RunRanks(ranks, [&](Communicator& world) {
    ContextShard shard(world, kTokens, 8, {}, exchange);
    shard.Fill(kDocuments);
    RunMixer(mixer_case, dtype, x, &shard, &result);
  });
  return result;
}

class ContextShardTest : public testing::TestWithParam<MixerCase> {};

TEST_P(ContextShardTest, AGroupOfOneChangesNoBit) {
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    const std::vector<double> x = RandomRows(5, "x", ConfigOf(GetParam()).width);
    Result alone;
    RunMixer(GetParam(), dtype, x, nullptr, &alone);
    for (const StateExchange exchange : {StateExchange::kGather, StateExchange::kChain}) {
      const Result got = RunOnRanks(1, GetParam(), dtype, x, exchange);
      EXPECT_EQ(got.y, alone.y);
      EXPECT_EQ(got.dx, alone.dx);
    }
  }
}

TEST_P(ContextShardTest, DocumentsDoNotSeeEachOther) {
  const int64_t width = ConfigOf(GetParam()).width;
  const std::vector<double> x = RandomRows(5, "x", width), other = RandomRows(6, "x", width);
  for (const int ranks : {2, 3, 4}) {
    for (const StateExchange exchange : {StateExchange::kGather, StateExchange::kChain}) {
      const Result before = RunOnRanks(ranks, GetParam(), DType::kF32, x, exchange);
      for (size_t d = 0; d + 1 < kDocuments.size(); ++d) {
        SCOPED_TRACE(StrCat(ranks, " ranks, document ", d, " changed"));
        const int64_t begin = kDocuments[d] * width, end = kDocuments[d + 1] * width;
        std::vector<double> changed = x;
        std::copy(other.begin() + begin, other.begin() + end, changed.begin() + begin);
        const Result after = RunOnRanks(ranks, GetParam(), DType::kF32, changed, exchange);
        for (int64_t i = 0; i < kTokens * width; ++i) {
          if (begin <= i && i < end) continue;
          ASSERT_EQ(after.y[i], before.y[i]) << "output of token " << i / width;
          ASSERT_EQ(after.dx[i], before.dx[i]) << "gradient of token " << i / width;
        }
      }
    }
  }
}

// What a rank's collectives carry in a layer visit, forward and backward, is the formula of
// parallel/state_passing.h whatever the number of tokens.
TEST(StateTraffic, IsTheFormulaAndDoesNotGrowWithTheSequence) {
  struct Kind {
    const char* mixer;
    int64_t convolved;  // channels of short convolutions of width 4
  };
  // Of heads 4 (2 of them in groups), on a width of 32.
  for (const Kind kind : {Kind{"gdn", 96}, {"mamba2", 192}, {"mlstm", 0}, {"retnet", 0}}) {
    const MixerCase mixer_case{kind.mixer, {kind.mixer}};
    const ModelConfig config = ConfigOf(mixer_case);
    ParamSet params;
    const Shape state =
        MakeMixer(kind.mixer, config,
                  {.scope = ParamScope(params), .root = ParamScope(params), .layers = 1})
            ->StateSpec(1, 1, DType::kF32)[0]
            .shape;
    const int64_t G = state[1], K = state[2], V = state[3];
    const int64_t map = std::string_view(kind.mixer) == "gdn"     ? G * K * K
                        : std::string_view(kind.mixer) == "mlstm" ? 2 * G
                                                                  : G * K;
    for (const int64_t tokens : {151, 302}) {
      SCOPED_TRACE(StrCat(kind.mixer, ", ", tokens, " tokens"));
      const int ranks = 3;
      RunRanks(ranks, [&](Communicator& world) {
        const int64_t left = world.rank() == 0 ? 0 : 1, right = world.rank() + 1 == ranks ? 0 : 1;
        // Three rows of a convolution's input go right, and their gradients come back.
        const int64_t halo = 3 * kind.convolved * (right + left);
        const int64_t frames = std::string_view(kind.mixer) == "mlstm" ? 2 * G : 0;
        const std::vector<double> x = RandomNormal(5, "x", {tokens, config.width}).values;
        int64_t before = 0;
        for (const StateExchange exchange : {StateExchange::kGather, StateExchange::kChain}) {
          ContextShard shard(world, tokens, 8, {}, exchange);
          shard.Fill(std::vector<int32_t>{0, 40, static_cast<int32_t>(tokens)});
          Result unused;
          RunMixer(mixer_case, DType::kF32, x, &shard, &unused);
          const int64_t states = exchange == StateExchange::kGather
                                     ? 2 * G * K * V + map
                                     : right * (G * K * V + frames) + left * G * K * V;
          EXPECT_EQ(world.traffic().bytes - before, 4 * (states + halo)) << "rank " << world.rank();
          before = world.traffic().bytes;
        }
      });
    }
  }
}

// Of 2 heads of 8 numbers that 4 heads read. A window's does not grow with the sequence either.
TEST(TokenTraffic, IsTheFormula) {
  constexpr int64_t kKeysAndValues = 2 * 2 * 8, kQueries = 4 * 8, kReach = 16;
  for (const int64_t tokens : {151, 302}) {
    for (const int ranks : {2, 3}) {
      SCOPED_TRACE(StrCat(tokens, " tokens, ", ranks, " ranks"));
      RunRanks(ranks, [&](Communicator& world) {
        ContextShard shard(world, tokens, 8, {});
        shard.Fill(std::vector<int32_t>{0, 40, static_cast<int32_t>(tokens)});
        const std::vector<double> x = RandomNormal(5, "x", {tokens, 32}).values;
        const auto given = [&](const MixerCase& mixer_case) {
          const int64_t before = world.traffic().bytes;
          Result unused;
          RunMixer(mixer_case, DType::kF32, x, &shard, &unused);
          return (world.traffic().bytes - before) / 4;
        };
        // Keys and values go right, and their gradients come back.
        const int64_t left = world.rank() == 0 ? 0 : 1, right = world.rank() + 1 == ranks ? 0 : 1;
        EXPECT_EQ(given({"window", {"window"}, {"window.window=17"}}),
                  kReach * kKeysAndValues * (right + left));
        // Own keys and values to all, twice, and gradients of theirs back. Half of the queries to
        // the mirror rank, and again with their outputs and gradients; outputs of its and gradients
        // of the queries.
        const int64_t own = shard.tokens() - shard.half();
        const int64_t theirs = shard.mirrored_half().query_tokens();
        const bool alone = shard.mirror() == world.rank();
        EXPECT_EQ(given({"full", {"full"}}), (shard.tokens() + tokens) * kKeysAndValues +
                                                 (alone ? 0 : (4 * own + 2 * theirs) * kQueries));
      });
    }
  }
}

// Bytes that the case's first mixer leaves after a forward, of `tokens` tokens a rank.
int64_t KeptBytes(const MixerCase& mixer_case, int ranks, int64_t tokens, bool recompute) {
  const Device meta{Backend::kMeta};
  const MetaMeter meter;
  const BoundMixer bound(mixer_case, DType::kF32, meta);
  const std::unique_ptr<Communicator> last = MakeMetaCommunicator(ranks - 1, ranks);
  ContextShard shard(*last, ranks * tokens, 1, meta);
  shard.row(), shard.first_half(), shard.mirrored_half();  // stay for good
  Stream stream{.device = meta};
  Tape tape(stream);
  const Var in = tape.Input(Tensor::Empty({tokens, ConfigOf(mixer_case).width}, DType::kF32, meta),
                            /*needs_grad=*/true);
  const MixerContext context{.documents = shard.documents(), .shard = ranks > 1 ? &shard : nullptr};
  const int64_t before = meter.memory().live;
  const auto forward = [&](Tape& t, std::span<const Var> x) -> std::vector<Var> {
    return {bound.mixer->Forward(t, x[0], context).y_ND};
  };
  const std::span<const Var> x(&in, 1);
  const std::vector<Var> y = recompute ? tape.Recompute(x, forward) : forward(tape, x);
  return meter.memory().live - before;
}

TEST(FullAttention, KeepsNothingOfOtherRanks) {
  for (const MixerCase& mixer_case : AllMixerCases()) {
    if (mixer_case.mixers != std::vector<std::string>{"full"}) continue;
    for (const bool recompute : {false, true}) {
      SCOPED_TRACE(StrCat(mixer_case.name, recompute ? ", recomputed" : ""));
      const int64_t alone = KeptBytes(mixer_case, 1, 1024, recompute);
      for (const int ranks : {2, 3}) {
        EXPECT_EQ(KeptBytes(mixer_case, ranks, 1024, recompute), alone) << ranks << " ranks";
      }
    }
  }
}

// Recompute lets go of what sparse attention read of other ranks.
TEST(SparseAttention, RecomputeKeepsNothingOfOtherRanks) {
  for (const char* kind : {"nsa", "dsa"}) {
    for (const MixerCase& mixer_case : AllMixerCases()) {
      if (mixer_case.mixers != std::vector<std::string>{kind}) continue;
      SCOPED_TRACE(mixer_case.name);
      EXPECT_EQ(KeptBytes(mixer_case, 2, 1024, true), KeptBytes(mixer_case, 1, 1024, true));
    }
  }
}

TEST(FirstTokenMass, CountsATokenOnceThoughItIsComputedAgain) {
  for (const char* kind : {"full", "window"}) {
    for (const int ranks : {1, 2, 3}) {
      SCOPED_TRACE(StrCat(kind, ", ", ranks, " ranks"));
      RunRanks(ranks, [&](Communicator& world) {
        const MixerCase mixer_case{kind, {kind}};
        const ModelConfig config = ConfigOf(mixer_case);
        const BoundMixer bound(mixer_case, DType::kF64, {});
        ContextShard shard(world, kTokens, 8, {});
        shard.Fill(kDocuments);
        const MixerContext context{.documents = shard.documents(),
                                   .shard = &shard,
                                   .first_token_mass = Tensor::Zeros({2}, DType::kF64, {})};
        Stream stream;
        Tape tape(stream);
        const Tensor x = Tensor::FromHost(RandomRows(5, "x", config.width), {kTokens, config.width},
                                          DType::kF64, {});
        const Var in = tape.Input(x.Rows(shard.begin(), shard.begin() + shard.tokens()), true);
        const auto forward = [&](Tape& t, std::span<const Var> of) -> std::vector<Var> {
          return {bound.mixer->Forward(t, of[0], context).y_ND};
        };
        const Var y = tape.Recompute(std::span(&in, 1), forward)[0];
        tape.Backward({{y, Tensor::Zeros(y.shape(), DType::kF64, {})}});
        std::vector<double> mass = context.first_token_mass.ToDoubles();
        shard.SumOverRow(mass);
        const auto first_tokens = static_cast<int64_t>(kDocuments.size()) - 1;
        EXPECT_EQ(mass[1], static_cast<double>(config.heads * (kTokens - first_tokens)));
      });
    }
  }
}

std::vector<MixerCase> FirstOfEach() {
  std::vector<MixerCase> cases;
  for (const MixerCase& mixer_case : AllMixerCases()) {
    if (mixer_case.mixers.size() == 1) cases.push_back(mixer_case);
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Mixers, ContextShardTest, testing::ValuesIn(FirstOfEach()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace lt2
