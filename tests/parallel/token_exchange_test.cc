// Rows brought from other ranks, and their gradients' way back, in whole numbers: nothing rounds.
#include "parallel/token_exchange.h"

#include <gtest/gtest.h>

#include "core/allocator.h"
#include "core/strings.h"
#include "parallel/row_tiles.h"
#include "parallel/thread_communicator.h"

namespace lt2 {
namespace {

constexpr int64_t kWidth = 3;

// Rows [begin, end) of a row of tokens, no two elements alike.
Tensor RowsOf(int64_t begin, int64_t end, double offset = 0) {
  std::vector<double> values;
  for (int64_t i = begin * kWidth; i < end * kWidth; ++i) values.push_back(offset + i);
  return Tensor::FromHost(values, {end - begin, kWidth}, DType::kF64, {});
}

// The gradient that rank `reader` has of token `token`.
double Cotangent(int reader, int64_t token) { return static_cast<double>(100 * reader + token); }

Tensor CotangentOf(int reader, int64_t begin, int64_t end) {
  std::vector<double> values;
  for (int64_t t = begin; t < end; ++t) values.insert(values.end(), kWidth, Cotangent(reader, t));
  return Tensor::FromHost(values, {end - begin, kWidth}, DType::kF64, {});
}

enum class Recomputed { kNo, kYes };

// A tensor that is read twice, and one that needs no gradient, between them; on all shards here,
// one after another.
void CheckLeftContext(std::span<const std::unique_ptr<ContextShard>> shards, int64_t reach,
                      Recomputed recomputed) {
  Stream stream;
  Tape tape(stream);
  std::vector<Var> xs;
  std::vector<Tape::Seed> seeds;
  for (const auto& shard : shards) {
    const int64_t begin = shard->begin(), end = begin + shard->tokens();
    const int64_t first = begin - shard->Halo(reach);
    const Var x = tape.Input(RowsOf(begin, end), /*needs_grad=*/true);
    const Var fixed = tape.Input(RowsOf(begin, end, 1000));
    const auto bring = [&](Tape& t, std::span<const Var> in) {
      return LeftContext(t, std::vector<Var>{in[0], in[1], in[0]}, *shard, reach);
    };
    const std::vector<Var> in = {x, fixed};
    const std::vector<Var> y =
        recomputed == Recomputed::kYes ? tape.Recompute(in, bring) : bring(tape, in);
    EXPECT_EQ(y[0].value.ToDoubles(), RowsOf(first, end).ToDoubles());
    EXPECT_EQ(y[1].value.ToDoubles(), RowsOf(first, end, 1000).ToDoubles());
    EXPECT_EQ(y[2].value.ToDoubles(), RowsOf(first, end).ToDoubles());
    xs.push_back(x);
    for (const Var& part : y) {
      seeds.push_back({part, CotangentOf(shard->cp().rank(), first, end)});
    }
  }
  const std::vector<Tensor> dx = tape.Backward(std::move(seeds), xs);
  for (size_t i = 0; i < dx.size(); ++i) {
    const ContextShard& shard = *shards[i];
    std::vector<double> want;
    for (int64_t t = shard.begin(); t < shard.begin() + shard.tokens(); ++t) {
      double sum = 0;
      for (int reader = shard.cp().rank(); reader < shard.cp().size(); ++reader) {
        const bool reads = t >= shard.Begin(reader) - shard.Halo(reach, reader);
        if (reads) sum += 2 * Cotangent(reader, t);
      }
      want.insert(want.end(), kWidth, sum);
    }
    EXPECT_EQ(dx[i].ToDoubles(), want);
  }
}

// Of a row that `ranks` ranks share, cut into `tiles`; 0: each has one shard.
void CheckLeftContexts(int ranks, int tiles) {
  for (const int64_t reach : {1, 3, 7, 100}) {  // over one rank, over several, over all
    for (const Recomputed recomputed : {Recomputed::kNo, Recomputed::kYes}) {
      SCOPED_TRACE(StrCat(ranks, " ranks, ", tiles, " tiles, reach ", reach));
      RunRanks(ranks, [&](Communicator& world) {
        const std::vector<std::unique_ptr<Communicator>> here = TilesHere(world, tiles);
        std::vector<std::unique_ptr<ContextShard>> shards;
        const auto add = [&](Communicator& cp) {
          shards.push_back(std::make_unique<ContextShard>(cp, 11, 1, Device{}));
        };
        for (const auto& tile : here) add(*tile);
        if (here.empty()) add(world);
        CheckLeftContext(shards, reach, recomputed);
      });
    }
  }
}

TEST(TokenExchange, LeftContextAndItsGradient) {
  for (const int ranks : {1, 2, 4}) CheckLeftContexts(ranks, 0);
}

TEST(TokenExchange, LeftContextOfTilesThatTakeTurns) {
  for (const int ranks : {1, 2, 4}) CheckLeftContexts(ranks, 4);
}

TEST(TokenExchangeDeathTest, RanksThatTakeTurnsCannotMeet) {
  const std::unique_ptr<Communicator> alone = MakeGroupOfOne();
  const auto tiles = TilesHere(*alone, 2);
  EXPECT_DEATH(tiles[0]->Barrier("meeting"),
               "meeting: tiles take turns, and cannot meet in Barrier");
}

// Not the own rows, which are as many as all that recompute is there to save.
TEST(TokenExchange, OnlyWhatWasBroughtSurvivesRecompute) {
  constexpr int64_t kTokens = 4096, kReach = 3;
  const MetaMeter meter;
  const std::unique_ptr<Communicator> last = MakeMetaCommunicator(1, 2);
  ContextShard shard(*last, kTokens, 1, {Backend::kMeta});
  Stream stream{.device = {Backend::kMeta}};
  Tape tape(stream);
  const Var x = tape.Input(Tensor::Empty({kTokens / 2, kWidth}, DType::kF64, stream.device),
                           /*needs_grad=*/true);
  const int64_t before = meter.memory().live;
  std::vector<Var> y = tape.Recompute(std::span(&x, 1), [&](Tape& t, std::span<const Var> in) {
    return std::vector<Var>{OwnTokens(t, LeftContext(t, in, shard, kReach)[0], shard, kReach)};
  });
  y.clear();
  EXPECT_LE(meter.memory().live - before, 4096);
}

TEST(TokenExchange, GatheredTokensAndTheirGradient) {
  constexpr int64_t kTokens = 11;
  for (const int ranks : {1, 3, 4}) {
    RunRanks(ranks, [&](Communicator& world) {
      ContextShard shard(world, kTokens, 1, {});
      const int64_t begin = shard.begin(), end = begin + shard.tokens();
      Stream stream;
      Tape tape(stream);
      const Var x = tape.Input(RowsOf(begin, end), /*needs_grad=*/true);
      const Var fixed = tape.Input(RowsOf(begin, end, 1000));
      const std::vector<Var> y = GatherTokens(tape, std::vector<Var>{x, fixed, x}, shard);
      EXPECT_EQ(y[0].value.ToDoubles(), RowsOf(0, kTokens).ToDoubles());
      EXPECT_EQ(y[1].value.ToDoubles(), RowsOf(0, kTokens, 1000).ToDoubles());
      const Tensor dy = CotangentOf(world.rank(), 0, kTokens);
      const Tensor dx =
          tape.Backward({{y[0], dy}, {y[1], dy.Clone()}, {y[2], dy.Clone()}}, std::span(&x, 1))[0];
      std::vector<double> want;
      for (int64_t t = begin; t < end; ++t) {
        double sum = 0;
        for (int reader = 0; reader < ranks; ++reader) sum += 2 * Cotangent(reader, t);
        want.insert(want.end(), kWidth, sum);
      }
      EXPECT_EQ(dx.ToDoubles(), want);
    });
  }
}

}  // namespace
}  // namespace lt2
