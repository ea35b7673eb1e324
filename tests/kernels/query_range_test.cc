// Queries that are a part of the tokens, as under context parallelism: rows of queries are those of
// the whole, and gradients of keys, summed over a partition of the queries, too.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "kernels/attention.h"
#include "kernels/block_mean.h"
#include "kernels/case.h"
#include "kernels/compressed_attention.h"
#include "kernels/first_token_mass.h"
#include "kernels/indexer_loss.h"
#include "kernels/lightning_indexer.h"
#include "kernels/nsa_attention.h"
#include "kernels/select_blocks.h"
#include "kernels/selected_attention.h"

namespace lt2 {
namespace {

constexpr uint64_t kSeeds = 12;
constexpr double kTolerance = 1e-12;

using Tensors = std::vector<Tensor>;
using Vars = std::vector<Var>;

// What an operator makes of queries and keys. `sums` add up over queries; `rows` are of each.
struct Made {
  Vars differentiable;  // rows, or F64 [1]
  Tensors rows, sums;
};
using Operator =
    std::function<Made(Tape&, const Vars& of_queries, const Vars& of_keys, const Documents&)>;

struct Problem {
  uint64_t seed;
  Device device;
  std::vector<int32_t> cu;
  Tensors of_queries, of_keys;  // a row for each token

  int64_t tokens() const { return cu.back(); }
  Tensor Random(const std::string& name, Shape shape, double scale = 1) const {
    return Tensor::FromHost(RandomNormal(seed, name, shape, scale).values, shape, DType::kF64,
                            device);
  }
};

Problem RandomProblem(uint64_t seed, Backend backend, int64_t most_tokens) {
  std::mt19937_64 random(seed);
  Problem problem{.seed = seed, .device = {backend}, .cu = {0}, .of_queries = {}, .of_keys = {}};
  const int64_t tokens = 1 + random() % most_tokens, longest = 1 + random() % tokens;
  while (problem.cu.back() < tokens) {
    const int64_t length = std::min<int64_t>(1 + random() % longest, tokens - problem.cu.back());
    problem.cu.push_back(static_cast<int32_t>(problem.cu.back() + length));
  }
  return problem;
}

std::vector<TokenRange> RandomPartition(uint64_t seed, int64_t tokens) {
  std::mt19937_64 random(seed + 1000);
  std::vector<int64_t> cuts = {0, tokens};
  for (int n = 0; n < 3; ++n) cuts.push_back(random() % (tokens + 1));
  std::ranges::sort(cuts);
  std::vector<TokenRange> parts;
  for (size_t n = 0; n + 1 < cuts.size(); ++n) {
    if (cuts[n] < cuts[n + 1]) parts.push_back({cuts[n], cuts[n + 1]});
  }
  return parts;
}

struct Result {
  Tensors rows, sums;  // of queries; of keys and of what adds up
};

Result Apply(const Problem& problem, const Operator& op, const Documents& documents) {
  Stream stream{problem.device};
  Tape tape(stream);
  const auto inputs = [&](const Tensors& values, int64_t begin, int64_t end) {
    Vars vars;
    for (const Tensor& x : values) vars.push_back(tape.Input(x.Rows(begin, end).Clone(), true));
    return vars;
  };
  const int64_t begin = documents.query_begin(), end = documents.query_end();
  const Vars queries = inputs(problem.of_queries, begin, end);
  const Vars keys = inputs(problem.of_keys, 0, problem.tokens());
  const Made made = op(tape, queries, keys, documents);
  Result result{made.rows, made.sums};
  std::vector<Tape::Seed> seeds;
  for (const Var& y : made.differentiable) {
    const bool of_rows = y.shape().rank() > 1;
    (of_rows ? result.rows : result.sums).push_back(y.value);
    Shape shape = y.shape();
    if (of_rows) shape[0] = problem.tokens();
    const Tensor dy = problem.Random("dy", shape);
    seeds.push_back({y, of_rows ? dy.Rows(begin, end) : dy});
  }
  if (seeds.empty()) return result;
  Vars all = queries;
  all.insert(all.end(), keys.begin(), keys.end());
  const Tensors grads = tape.Backward(std::move(seeds), all);
  for (size_t i = 0; i < all.size(); ++i) {
    if (!grads[i].defined()) continue;
    (i < queries.size() ? result.rows : result.sums).push_back(grads[i]);
  }
  return result;
}

void ExpectClose(const std::vector<double>& got, const std::vector<double>& want) {
  ASSERT_EQ(got.size(), want.size());
  double difference = 0, norm = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i] == want[i]) continue;  // -inf as well
    difference = std::max(difference, std::abs(got[i] - want[i]));
    norm = std::max(norm, std::abs(want[i]));
  }
  EXPECT_LE(difference, kTolerance * std::max(norm, 1.0));
}

void ExpectPartsMakeTheWhole(const Problem& problem, const Operator& op) {
  const Result whole = Apply(problem, op, Documents::Of(problem.cu, problem.device));
  std::vector<std::vector<double>> rows(whole.rows.size()), sums(whole.sums.size());
  for (const TokenRange& part : RandomPartition(problem.seed, problem.tokens())) {
    SCOPED_TRACE(testing::Message() << "queries " << part.begin << " to " << part.end);
    const Result got = Apply(problem, op, Documents::Of(problem.cu, problem.device, part));
    ASSERT_EQ(got.rows.size(), rows.size());
    ASSERT_EQ(got.sums.size(), sums.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      SCOPED_TRACE(testing::Message() << "of queries, " << i);
      const std::vector<double> values = got.rows[i].ToDoubles();
      ExpectClose(values, whole.rows[i].Rows(part.begin, part.end).ToDoubles());
      rows[i].insert(rows[i].end(), values.begin(), values.end());
    }
    for (size_t i = 0; i < sums.size(); ++i) {
      const std::vector<double> values = got.sums[i].ToDoubles();
      sums[i].resize(values.size());
      for (size_t n = 0; n < values.size(); ++n) sums[i][n] += values[n];
    }
  }
  for (size_t i = 0; i < sums.size(); ++i) {
    SCOPED_TRACE(testing::Message() << "sum " << i);
    ExpectClose(sums[i], whole.sums[i].ToDoubles());
  }
}

// Calls run(problem) with random problems of both backends.
template <class Fn>
void ForEachProblem(int64_t most_tokens, const Fn& run) {
  for (const Backend backend : {Backend::kReference, Backend::kCpu}) {
    for (uint64_t seed = 0; seed < kSeeds; ++seed) {
      const Problem problem = RandomProblem(seed, backend, most_tokens);
      SCOPED_TRACE(testing::Message() << "seed " << seed << " tokens " << problem.tokens()
                                      << (backend == Backend::kCpu ? " cpu" : " reference"));
      run(problem);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

// q and as many k and v as there are documents' tokens.
void AddHeads(Problem& problem, int64_t H, int64_t G, int64_t D, int64_t E) {
  const int64_t N = problem.tokens();
  problem.of_queries = {problem.Random("q", {N, H, D}, 2)};
  problem.of_keys = {problem.Random("k", {N, G, D}), problem.Random("v", {N, G, E})};
}

TEST(QueryRange, Attention) {
  ForEachProblem(300, [](Problem problem) {
    AddHeads(problem, 4, 2, 12, 20);
    const AttentionOptions options{
        .scale = 0.3, .window = problem.seed % 3 == 0 ? 0 : static_cast<int64_t>(problem.seed * 9)};
    ExpectPartsMakeTheWhole(
        problem, [&](Tape& tape, const Vars& q, const Vars& kv, const Documents& documents) {
          Tensor lse;
          const Var o = Attention(tape, q[0], kv[0], kv[1], options, documents, &lse);
          const Tensor mass = Tensor::Zeros({2}, DType::kF64, problem.device);
          FirstTokenMass(tape.stream(), {.q_NHD = q[0].value,
                                         .k_NGD = kv[0].value,
                                         .lse_NH = lse,
                                         .mass = mass,
                                         .options = options,
                                         .documents = documents});
          return Made{.differentiable = {o}, .rows = {lse}, .sums = {mass}};
        });
  });
}

// Tokens of a window's length before the queries, and none behind them, are enough.
TEST(QueryRange, AttentionInAWindowNeedsNoMore) {
  ForEachProblem(300, [](Problem problem) {
    AddHeads(problem, 2, 1, 8, 8);
    const int64_t N = problem.tokens(), window = 1 + static_cast<int64_t>(problem.seed * 7);
    const AttentionOptions options{.scale = 0.3, .window = window};
    const Operator attend = [&](Tape& tape, const Vars& q, const Vars& kv,
                                const Documents& documents) {
      Tensor lse;
      const Var o = Attention(tape, q[0], kv[0], kv[1], options, documents, &lse);
      const Tensor mass = Tensor::Zeros({2}, DType::kF64, problem.device);
      FirstTokenMass(tape.stream(), {.q_NHD = q[0].value,
                                     .k_NGD = kv[0].value,
                                     .lse_NH = lse,
                                     .mass = mass,
                                     .options = options,
                                     .documents = documents});
      return Made{.differentiable = {o}, .rows = {lse}, .sums = {mass}};
    };
    for (const TokenRange& part : RandomPartition(problem.seed, N)) {
      const Result want = Apply(problem, attend, Documents::Of(problem.cu, problem.device, part));
      const int64_t low = std::max<int64_t>(0, part.begin - window + 1);
      Problem shard = problem;
      shard.cu = {0};
      int64_t first_position = 0;
      for (size_t d = 0; d + 1 < problem.cu.size(); ++d) {
        const int64_t begin = problem.cu[d];
        const int64_t end = std::min<int64_t>(problem.cu[d + 1], part.end);
        if (end <= low || end <= begin) continue;
        if (begin < low) first_position = low - begin;
        shard.cu.push_back(static_cast<int32_t>(end - low));
      }
      const auto cut = [&](Tensors& values) {
        for (Tensor& x : values) x = x.Rows(low, part.end);
      };
      cut(shard.of_keys);
      cut(shard.of_queries);
      Documents documents(shard.tokens(), static_cast<int64_t>(shard.cu.size()) - 1, problem.device,
                          {part.begin - low, part.end - low});
      documents.Fill(shard.cu, first_position);
      const Operator again = [&](Tape& tape, const Vars& q, const Vars& kv, const Documents& of) {
        Made made = attend(tape, q, kv, of);
        // The cotangents of the whole.
        const Tensor dy = problem.Random("dy", {N, 2, 8}).Rows(part.begin, part.end);
        const Tensors grads =
            tape.Backward({{made.differentiable[0], dy}}, Vars{q[0], kv[0], kv[1]});
        return Made{.differentiable = {},
                    .rows = {made.rows[0], made.differentiable[0].value, grads[0]},
                    .sums = {made.sums[0], grads[1], grads[2]}};
      };
      const Result got = Apply(shard, again, documents);
      for (size_t i = 0; i < got.rows.size(); ++i) {
        ExpectClose(got.rows[i].ToDoubles(), want.rows[i].ToDoubles());
      }
      ExpectClose(got.sums[0].ToDoubles(), want.sums[0].ToDoubles());
      for (size_t i = 1; i < got.sums.size(); ++i) {
        ExpectClose(got.sums[i].ToDoubles(), want.sums[i].Rows(low, part.end).ToDoubles());
      }
    }
  });
}

TEST(QueryRange, CompressedAttention) {
  ForEachProblem(300, [](Problem problem) {
    const int64_t N = problem.tokens(), block = 1 + static_cast<int64_t>(problem.seed % 5);
    AddHeads(problem, 4, 2, 6, 9);
    ExpectPartsMakeTheWhole(
        problem, [&](Tape& tape, const Vars& q, const Vars& kv, const Documents& documents) {
          const Var k = BlockMean(tape, kv[0], block, documents);
          const Var v = BlockMean(tape, kv[1], block, documents);
          EXPECT_EQ(k.value.dim(0), BlockRows(N, block));
          return Made{.differentiable = {CompressedAttention(
                          tape, q[0], k, v, {.scale = 0.3, .block = block}, documents)},
                      .rows = {},
                      .sums = {}};
        });
  });
}

// Long enough for several parts of its rows in the backward pass.
TEST(QueryRange, SparseAttentionOfALongDocument) {
  for (const uint64_t seed : {1, 2}) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Problem problem{seed, {Backend::kCpu}, {0, 3, 1203, 1210}, {}, {}};
    AddHeads(problem, 2, 1, 4, 5);
    ExpectPartsMakeTheWhole(problem, [](Tape& tape, const Vars& q, const Vars& kv,
                                        const Documents& documents) {
      const Var k = BlockMean(tape, kv[0], 4, documents), v = BlockMean(tape, kv[1], 4, documents);
      const Tensor blocks = SelectBlocks(tape, q[0].value, k.value,
                                         {.scale = 0.3, .block = 4, .selected = 9}, documents);
      return Made{.differentiable = {CompressedAttention(tape, q[0], k, v,
                                                         {.scale = 0.3, .block = 4}, documents),
                                     SelectedAttention(tape, q[0], kv[0], kv[1], blocks,
                                                       {.scale = 0.3, .block = 4}, documents)},
                  .rows = {blocks},
                  .sums = {}};
    });
  }
}

TEST(QueryRange, NsaAttention) {
  ForEachProblem(150, [](Problem problem) {
    AddHeads(problem, 4, 2, 6, 9);
    problem.of_queries.push_back(problem.Random("gate", {problem.tokens(), 4, 3}));
    const NsaOptions options{.scale = 0.4,
                             .block = 1 + static_cast<int64_t>(problem.seed % 6),
                             .selected = 3 + static_cast<int64_t>(problem.seed % 3),
                             .window = 1 + static_cast<int64_t>(problem.seed * 4)};
    ExpectPartsMakeTheWhole(
        problem, [&](Tape& tape, const Vars& q, const Vars& kv, const Documents& documents) {
          const NsaOutput out = NsaAttention(tape, q[0], kv[0], kv[1], q[1], options, documents);
          return Made{.differentiable = {out.o_NHE}, .rows = {out.blocks_NGS}, .sums = {}};
        });
  });
}

// As sparse attention of a latent uses them: keys that the indexer chose, and what trains it.
TEST(QueryRange, IndexedAttentionAndItsLoss) {
  ForEachProblem(150, [](Problem problem) {
    const int64_t N = problem.tokens(), J = 3, C = 5, H = 4, D = 6;
    const int64_t selected = 1 + static_cast<int64_t>(problem.seed * 3);
    problem.of_queries = {problem.Random("q", {N, H, D}, 2), problem.Random("a", {N, J, C}),
                          problem.Random("w", {N, J})};
    problem.of_keys = {problem.Random("k", {N, 1, D}), problem.Random("b", {N, C})};
    ExpectPartsMakeTheWhole(
        problem, [&](Tape& tape, const Vars& q, const Vars& kv, const Documents& documents) {
          const Tensor keys =
              LightningIndexer(tape, q[1].value, kv[1].value,
                               problem.seed % 2 == 0 ? q[2].value : Tensor(), selected, documents);
          Tensor lse;
          const Var o = SelectedAttention(tape, q[0], kv[0], kv[0],
                                          keys.Reshape({documents.query_tokens(), 1, selected}),
                                          {.scale = 0.4}, documents, &lse);
          const Var loss = IndexerLoss(tape, q[1], kv[1], q[2],
                                       {.q_NHD = q[0].value,
                                        .k_NGD = kv[0].value,
                                        .lse_NH = lse,
                                        .keys_NS = keys,
                                        .scale = 0.4,
                                        .documents = documents},
                                       0.5);
          return Made{.differentiable = {o, loss}, .rows = {keys, lse}, .sums = {}};
        });
  });
}

TEST(QueryRange, PairsAddUp) {
  ForEachProblem(300, [](const Problem& problem) {
    const Documents whole = Documents::Of(problem.cu, problem.device);
    double visible = 0, compressed = 0, selected = 0;
    for (const TokenRange& part : RandomPartition(problem.seed, problem.tokens())) {
      const Documents documents = Documents::Of(problem.cu, problem.device, part);
      visible += VisiblePairs(documents, 9);
      compressed += CompressedPairs(documents, 4);
      selected += SelectedPairs(documents, 3, 4);
    }
    EXPECT_EQ(visible, VisiblePairs(whole, 9));
    EXPECT_EQ(compressed, CompressedPairs(whole, 4));
    EXPECT_EQ(selected, SelectedPairs(whole, 3, 4));
  });
}

}  // namespace
}  // namespace lt2
