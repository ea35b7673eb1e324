// Attention to a row that ranks share: bit for bit that of kernels that are given the whole row,
// whatever the blocks of heads, and what is held of it.
#include "parallel/row_attention.h"

#include <gtest/gtest.h>

#include <random>

#include "core/allocator.h"
#include "core/strings.h"
#include "kernels/case.h"
#include "kernels/elementwise.h"
#include "parallel/row_tiles.h"
#include "parallel/thread_communicator.h"

namespace lt2 {
namespace {

// Of the whole row.
struct Problem {
  uint64_t seed = 0;
  int ranks = 1;
  DType dtype = DType::kF64;
  int64_t H = 1, G = 1, D = 1, E = 1;
  std::vector<int32_t> cu = {0};
  AttentionOptions options = {.scale = 0.3};

  int64_t tokens() const { return cu.back(); }
  Tensor Random(const char* name, int64_t heads, int64_t channels) const {
    const Shape shape = {tokens(), heads, channels};
    return Tensor::FromHost(RandomNormal(seed, name, shape).values, shape, dtype, {});
  }
  std::string ToString() const {
    return StrCat("seed ", seed, ": ", ranks, " ranks, ", tokens(), " tokens, ", cu.size() - 1,
                  " documents, heads ", H, " over ", G, " of ", D, " and ", E, ", ", Name(dtype));
  }
};

Problem RandomProblem(uint64_t seed) {
  std::mt19937_64 random(seed);
  Problem problem{.seed = seed, .ranks = static_cast<int>(1 + random() % 4)};
  problem.dtype = random() % 2 == 0 ? DType::kF32 : DType::kF64;
  problem.G = 1 + random() % 5;
  problem.H = problem.G * (1 + random() % 3);
  problem.D = 1 + random() % 12;
  problem.E = 1 + random() % 12;
  // One in four has too few tokens for halves.
  const int64_t tokens = problem.ranks + random() % (random() % 4 == 0 ? problem.ranks : 300);
  const int64_t longest = 1 + random() % tokens;
  while (problem.tokens() < tokens) {
    const int64_t end = problem.tokens() + 1 + random() % longest;
    problem.cu.push_back(static_cast<int32_t>(std::min<int64_t>(end, tokens)));
  }
  return problem;
}

// The queries that rank `rank` works on, in the order of its backward.
std::vector<TokenRange> QueriesOf(const Problem& problem, int rank) {
  const auto begin = [&](int r) { return ShardBegin(problem.tokens(), problem.ranks, r); };
  const auto half = [&](int r) { return begin(r) + (begin(r + 1) - begin(r) + 1) / 2; };
  if (problem.ranks == 1 || problem.tokens() < 2 * problem.ranks) {
    return {{begin(rank), begin(rank + 1)}};
  }
  const int mirror = problem.ranks - 1 - rank;
  return {{half(mirror), begin(mirror + 1)}, {begin(rank), half(rank)}};
}

struct Values {
  Tensor q, k, v, dout;
  Tensor o, dq, dk, dv;  // made of these
};

Values InputsOf(const Problem& problem) {
  return {.q = problem.Random("q", problem.H, problem.D),
          .k = problem.Random("k", problem.G, problem.D),
          .v = problem.Random("v", problem.G, problem.E),
          .dout = problem.Random("do", problem.H, problem.E)};
}

// By every rank's kernel calls on all heads of the whole row.
Values Whole(const Problem& problem, Values x) {
  const auto like = [](const Tensor& of) { return Tensor::Empty(of.shape(), of.dtype(), {}); };
  x.o = like(x.dout), x.dq = like(x.q);
  Stream stream;
  for (int r = 0; r < problem.ranks; ++r) {
    const Tensor dk = like(x.k), dv = like(x.v);
    bool add = false;
    for (const TokenRange& range : QueriesOf(problem, r)) {
      const auto rows = [&](const Tensor& of) { return of.Rows(range.begin, range.end); };
      const Documents documents = Documents::Of(problem.cu, {}, range);
      const Tensor lse = Tensor::Empty({range.size(), problem.H}, problem.dtype, {});
      AttentionForward(stream, {.q_NHD = rows(x.q),
                                .k_NGD = x.k,
                                .v_NGE = x.v,
                                .o_NHE = rows(x.o),
                                .lse_NH = lse,
                                .options = problem.options,
                                .documents = documents});
      AttentionBackward(stream, {.do_NHE = rows(x.dout),
                                 .q_NHD = rows(x.q),
                                 .k_NGD = x.k,
                                 .v_NGE = x.v,
                                 .o_NHE = rows(x.o),
                                 .lse_NH = lse,
                                 .dq_NHD = rows(x.dq),
                                 .dk_NGD = dk,
                                 .dv_NGE = dv,
                                 .accumulate_dk = add,
                                 .accumulate_dv = add,
                                 .options = problem.options,
                                 .documents = documents});
      add = true;
    }
    if (r == 0) {
      x.dk = dk, x.dv = dv;
    } else {
      AccumulateInto(stream, x.dk, dk);
      AccumulateInto(stream, x.dv, dv);
    }
  }
  return x;
}

// Each head alone, some together, all at once.
std::vector<RowBlocks> BlocksFor(const Problem& problem) {
  const int64_t head = problem.tokens() * (problem.D + problem.E) * SizeOf(problem.dtype);
  return {{.bytes = 1, .query_rows = 1}, {.bytes = 2 * head, .query_rows = 1}, {}};
}

Tensor Own(const ContextShard& shard, const Tensor& whole) {
  return whole.Rows(shard.begin(), shard.begin() + shard.tokens());
}

void ExpectBits(const ContextShard& shard, const Tensor& got, const Tensor& whole,
                const char* name) {
  EXPECT_EQ(got.ToDoubles(), Own(shard, whole).ToDoubles()) << name;
}

constexpr uint64_t kSeeds = 60;

// check(a rank's shard, the least of a block) on every rank, for several sizes of blocks.
template <class Check>
void OnRanks(const Problem& problem, const Check& check) {
  for (const RowBlocks& least : BlocksFor(problem)) {
    SCOPED_TRACE(StrCat("blocks of ", least.bytes, " bytes"));
    RunRanks(problem.ranks, [&](Communicator& world) {
      ContextShard shard(world, problem.tokens(), problem.tokens(), {});
      shard.Fill(problem.cu);
      check(shard, least);
    });
  }
}

TEST(RowAttention, HasTheBitsOfTheWholeRow) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const Problem problem = RandomProblem(seed);
    SCOPED_TRACE(problem.ToString());
    const Values whole = Whole(problem, InputsOf(problem));
    OnRanks(problem, [&](ContextShard& shard, const RowBlocks& least) {
      Stream stream;
      Tape tape(stream);
      std::vector<Var> in;
      for (const Tensor& x : {whole.q, whole.k, whole.v}) {
        in.push_back(tape.Input(Own(shard, x), /*needs_grad=*/true));
      }
      const auto attend = [&](Tape& t, std::span<const Var> x) -> std::vector<Var> {
        return {RowAttention(t, x[0], x[1], x[2], problem.options, shard, {}, least)};
      };
      const bool recompute = seed % 2 == 0;
      const Var o = (recompute ? tape.Recompute(in, attend) : attend(tape, in))[0];
      ExpectBits(shard, o.value, whole.o, "o");
      const std::vector<Tensor> dx = tape.Backward({{o, Own(shard, whole.dout)}}, in);
      ExpectBits(shard, dx[0], whole.dq, "dq");
      ExpectBits(shard, dx[1], whole.dk, "dk");
      ExpectBits(shard, dx[2], whole.dv, "dv");
    });
  }
}

// One value as queries, keys and values, with a gradient before.
TEST(RowAttention, AddsToGradientsThatAreThere) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    Problem problem = RandomProblem(seed);
    problem.H = problem.G, problem.E = problem.D;
    SCOPED_TRACE(problem.ToString());
    Values inputs = InputsOf(problem);
    inputs.k = inputs.v = inputs.q;
    const Values whole = Whole(problem, inputs);
    const Tensor before = problem.Random("before", problem.H, problem.D), sum = before.Clone();
    Stream stream;
    for (const Tensor& gradient : {whole.dq, whole.dk, whole.dv}) {
      AccumulateInto(stream, sum, gradient);
    }
    OnRanks(problem, [&](ContextShard& shard, const RowBlocks& least) {
      Stream own_stream;
      Tape tape(own_stream);
      const Var x = tape.Input(Own(shard, whole.q), /*needs_grad=*/true);
      const Var o = RowAttention(tape, x, x, x, problem.options, shard, {}, least);
      const Tensor dx = tape.Backward(
          {{o, Own(shard, whole.dout)}, {x, Own(shard, before).Clone()}}, std::span(&x, 1))[0];
      ExpectBits(shard, dx, sum, "dx");
    });
  }
}

// A rank's memory in bytes, of a row of `tokens` a rank.
struct Held {
  int64_t kept, transient;  // from forward to backward; beside that, at most
};

Held MemoryOf(int ranks, int64_t tokens, bool recompute, const RowBlocks& least) {
  constexpr int64_t kHeads = 8, kChannels = 32;
  const Device meta{Backend::kMeta};
  const MetaMeter meter;
  const std::unique_ptr<Communicator> last = MakeMetaCommunicator(ranks - 1, ranks);
  ContextShard shard(*last, ranks * tokens, 1, meta);
  shard.row(), shard.first_half(), shard.mirrored_half();  // held for good
  Stream stream{.device = meta};
  Tape tape(stream);
  std::vector<Var> in;
  for (int i = 0; i < 3; ++i) {
    in.push_back(tape.Input(Tensor::Empty({tokens, kHeads, kChannels}, DType::kF32, meta),
                            /*needs_grad=*/true));
  }
  const Tensor dout = Tensor::Empty(in[0].shape(), DType::kF32, meta);
  const auto attend = [&](Tape& t, std::span<const Var> x) -> std::vector<Var> {
    if (ranks == 1) return {Attention(t, x[0], x[1], x[2], {}, shard.documents())};
    return {RowAttention(t, x[0], x[1], x[2], {}, shard, {}, least)};
  };
  const int64_t before = meter.memory().live;
  const Var o = (recompute ? tape.Recompute(in, attend) : attend(tape, in))[0];
  const int64_t kept = meter.memory().live - before;
  tape.Backward({{o, dout}}, in);
  return {.kept = kept, .transient = meter.memory().peak - before - kept};
}

// A group of more ranks, with as many tokens each: no more is kept, and beside it there are no more
// of the row than two blocks' keys, values and their gradients.
TEST(RowAttention, KeepsNothingOfOtherRanks) {
  constexpr int64_t kTokens = 4096, kHeadBytes = 2 * 32 * 4;  // of a token's keys and values
  const RowBlocks each_head = {.bytes = 1, .query_rows = 1};
  for (const bool recompute : {false, true}) {
    const Held alone = MemoryOf(1, kTokens, recompute, each_head);
    const Held two = MemoryOf(2, kTokens, recompute, each_head);
    const Held four = MemoryOf(4, kTokens, recompute, each_head);
    EXPECT_EQ(two.kept, alone.kept);
    EXPECT_EQ(four.kept, alone.kept);
    EXPECT_EQ(four.transient - two.transient, 2 * kTokens * 2 * (2 * kHeadBytes));
  }
  EXPECT_LT(MemoryOf(4, kTokens, true, each_head).transient,
            MemoryOf(4, kTokens, true, {}).transient);
}

TEST(RowAttentionDeathTest, RanksThatTakeTurnsAreNotForIt) {
  const std::unique_ptr<Communicator> alone = MakeGroupOfOne();
  const auto tiles = TilesHere(*alone, 2);
  ContextShard shard(*tiles[0], 4, 1, {});
  Stream stream;
  Tape tape(stream);
  const Var x = tape.Input(Tensor::Zeros({2, 1, 1}, DType::kF64, {}));
  EXPECT_DEATH(RowAttention(tape, x, x, x, {}, shard),
               "ranks that take turns attend to what was passed on");
}

}  // namespace
}  // namespace lt2
