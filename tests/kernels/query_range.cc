#include "tests/kernels/query_range.h"

#include <gtest/gtest.h>

#include <random>

#include "core/cuda.h"
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
constexpr Device kReference{Backend::kReference};

// An output or a gradient.
struct Result {
  Tensor value;
  bool of_queries, gradient;  // not of queries: it adds up over them
};

// `cotangents` are made where there are none, and come back.
std::vector<Result> Apply(const RangeProblem& problem, const Documents& documents,
                          Tensors* cotangents = nullptr) {
  Tensors own;
  if (cotangents == nullptr) cotangents = &own;
  const bool make = cotangents->empty();
  Stream stream{problem.device};
  Tape tape(stream);
  const int64_t begin = documents.query_begin(), end = documents.query_end();
  Vars queries, keys;
  for (const Tensor& x : problem.of_queries) {
    queries.push_back(tape.Input(x.Rows(begin, end), true));
  }
  for (const Tensor& x : problem.of_keys) keys.push_back(tape.Input(x, true));
  const Made made = problem.op(tape, queries, keys, documents);
  std::vector<Result> results;
  for (const Tensor& x : made.rows) results.push_back({x, true, false});
  for (const Tensor& x : made.sums) results.push_back({x, false, false});
  std::vector<Tape::Seed> seeds;
  for (const Var& y : made.differentiable) {
    const bool of_rows = y.shape().rank() > 1;
    results.push_back({y.value, of_rows, false});
    if (make) {
      Shape shape = y.shape();
      if (of_rows) shape[0] = problem.tokens_before + end;
      const Tensor dy = Tensor::FromHost(RandomNormal(problem.seed, "dy", shape).values, shape,
                                         y.value.dtype(), problem.device);
      cotangents->push_back(of_rows ? dy.Rows(problem.tokens_before + begin, shape[0]) : dy);
    }
    seeds.push_back({y, (*cotangents)[seeds.size()]});
  }
  Vars inputs = queries;
  inputs.insert(inputs.end(), keys.begin(), keys.end());
  const Tensors gradients = tape.Backward(std::move(seeds), inputs);
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (gradients[i].defined()) results.push_back({gradients[i], i < queries.size(), true});
  }
  return results;
}

HostArray HostOf(const Tensor& x) { return {.shape = x.shape(), .values = x.ToDoubles()}; }

// Puts a part's result to those of the parts before.
void Join(HostArray& joined, const Result& part) {
  const HostArray here = HostOf(part.value);
  if (joined.values.empty()) {
    joined = here;
  } else if (part.of_queries) {
    joined.shape[0] += here.shape[0];
    joined.values.insert(joined.values.end(), here.values.begin(), here.values.end());
  } else {
    for (size_t i = 0; i < here.values.size(); ++i) joined.values[i] += here.values[i];
  }
}

std::vector<int32_t> RandomCuts(std::mt19937_64& random, int64_t tokens) {
  const int64_t longest = 1 + random() % tokens;
  std::vector<int32_t> cu = {0};
  while (cu.back() < tokens) {
    const int64_t length = std::min<int64_t>(1 + random() % longest, tokens - cu.back());
    cu.push_back(static_cast<int32_t>(cu.back() + length));
  }
  return cu;
}

// Room for more of them than there are.
Documents DocumentsOf(const RangeProblem& problem, TokenRange queries, int64_t first_position = 0) {
  Documents documents(problem.tokens(), static_cast<int64_t>(problem.cu.size()) + 1, problem.device,
                      queries);
  documents.Fill(problem.cu, first_position);
  return documents;
}

// q, and k and v of fewer heads.
void AddHeads(RangeProblem& problem, int64_t H, int64_t G, int64_t D, int64_t E) {
  const int64_t N = problem.tokens();
  problem.of_queries = {problem.Random("q", {N, H, D}, 2)};
  problem.of_keys = {problem.Random("k", {N, G, D}), problem.Random("v", {N, G, E})};
}

RangeProblem AttentionProblem(uint64_t seed, Device device, DType dtype, int64_t window) {
  RangeProblem problem(seed, RandomDocuments(seed, 300), device, dtype);
  AddHeads(problem, 4, 2, 12, 20);
  problem.op = [device, options = AttentionOptions{.scale = 0.3, .window = window}](
                   Tape& tape, const Vars& q, const Vars& kv, const Documents& documents) {
    Tensor lse;
    const Var o = Attention(tape, q[0], kv[0], kv[1], options, documents, &lse);
    const Tensor mass = Tensor::Zeros({2}, DType::kF64, device);
    FirstTokenMass(tape.stream(), {.q_NHD = q[0].value,
                                   .k_NGD = kv[0].value,
                                   .lse_NH = lse,
                                   .mass = mass,
                                   .options = options,
                                   .documents = documents});
    return Made{.differentiable = {o}, .rows = {lse}, .sums = {mass}};
  };
  return problem;
}

RangeProblem FullAttention(uint64_t seed, Device device, DType dtype) {
  return AttentionProblem(seed, device, dtype, seed % 3 == 0 ? 0 : static_cast<int64_t>(seed * 9));
}

// To means of blocks that are given, not computed: lists of all backends are then the same.
RangeProblem SparseAttention(uint64_t seed, const std::vector<int32_t>& cu, Device device,
                             DType dtype) {
  RangeProblem problem(seed, cu, device, dtype);
  const int64_t block = 1 + static_cast<int64_t>(seed % 5), C = BlockRows(problem.tokens(), block);
  AddHeads(problem, 4, 2, 6, 9);
  problem.of_keys.push_back(problem.Random("means of k", {C, 2, 6}));
  problem.of_keys.push_back(problem.Random("means of v", {C, 2, 9}));
  problem.op = [block, selected = 3 + static_cast<int64_t>(seed % 7)](
                   Tape& tape, const Vars& q, const Vars& kv, const Documents& documents) {
    const Tensor blocks =
        SelectBlocks(tape, q[0].value, kv[2].value,
                     {.scale = 0.3, .block = block, .selected = selected}, documents);
    return Made{.differentiable = {CompressedAttention(tape, q[0], kv[2], kv[3],
                                                       {.scale = 0.3, .block = block}, documents),
                                   SelectedAttention(tape, q[0], kv[0], kv[1], blocks,
                                                     {.scale = 0.3, .block = block}, documents)},
                .rows = {blocks},
                .sums = {}};
  };
  return problem;
}

RangeProblem SparseAttentionOfShortDocuments(uint64_t seed, Device device, DType dtype) {
  return SparseAttention(seed, RandomDocuments(seed, 300), device, dtype);
}

// Long enough for several parts of its rows in the backward pass.
RangeProblem SparseAttentionOfALongDocument(uint64_t seed, Device device, DType dtype) {
  return SparseAttention(seed, {0, 3, 1203, 1210}, device, dtype);
}

RangeProblem NativeSparseAttention(uint64_t seed, Device device, DType dtype) {
  RangeProblem problem(seed, RandomDocuments(seed, 150), device, dtype);
  AddHeads(problem, 4, 2, 6, 9);
  problem.of_queries.push_back(problem.Random("gate", {problem.tokens(), 4, 3}));
  problem.op = [options = NsaOptions{.scale = 0.4,
                                     .block = 1 + static_cast<int64_t>(seed % 6),
                                     .selected = 3 + static_cast<int64_t>(seed % 3),
                                     .window = 1 + static_cast<int64_t>(seed * 4)}](
                   Tape& tape, const Vars& q, const Vars& kv, const Documents& documents) {
    const NsaOutput out = NsaAttention(tape, q[0], kv[0], kv[1], q[1], options, documents);
    return Made{.differentiable = {out.o_NHE}, .rows = {out.blocks_NGS}, .sums = {}};
  };
  return problem;
}

// As sparse attention of a latent uses them: keys that the indexer chose, and what trains it.
RangeProblem IndexedAttentionAndItsLoss(uint64_t seed, Device device, DType dtype) {
  RangeProblem problem(seed, RandomDocuments(seed, 150), device, dtype);
  const int64_t N = problem.tokens(), J = 3, C = 5, H = 4, D = 6;
  problem.of_queries = {problem.Random("q", {N, H, D}, 2), problem.Random("a", {N, J, C}),
                        problem.Random("w", {N, J})};
  problem.of_keys = {problem.Random("k", {N, 1, D}), problem.Random("b", {N, C})};
  problem.op = [selected = 1 + static_cast<int64_t>(seed * 3), weighted = seed % 2 == 0](
                   Tape& tape, const Vars& q, const Vars& kv, const Documents& documents) {
    const Tensor keys = LightningIndexer(tape, q[1].value, kv[1].value,
                                         weighted ? q[2].value : Tensor(), selected, documents);
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
  };
  return problem;
}

}  // namespace

Tensor RangeProblem::Random(const std::string& name, const Shape& shape, double scale) const {
  return Tensor::FromHost(RandomNormal(seed, name, shape, scale).values, shape, dtype, device);
}

std::vector<int32_t> RandomDocuments(uint64_t seed, int64_t most_tokens) {
  std::mt19937_64 random(seed);
  return RandomCuts(random, 1 + random() % most_tokens);
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

const std::vector<RangeOperator>& AllRangeOperators() {
  static const std::vector<RangeOperator> all = {
      {"Attention", FullAttention, kSeeds},
      {"SparseAttention", SparseAttentionOfShortDocuments, kSeeds},
      {"SparseAttentionOfALongDocument", SparseAttentionOfALongDocument, 2},
      {"NsaAttention", NativeSparseAttention, kSeeds},
      {"IndexedAttentionAndItsLoss", IndexedAttentionAndItsLoss, kSeeds}};
  return all;
}

void ExpectPartsMakeTheWhole(const RangeOperator& of, Device device, DType dtype,
                             const RangeTolerance& tolerance) {
  for (uint64_t seed = 0; seed < of.seeds; ++seed) {
    const RangeProblem reference = of.problem(seed, kReference, DType::kF64);
    const RangeProblem problem = of.problem(seed, device, dtype);
    const int64_t N = problem.tokens();
    SCOPED_TRACE(testing::Message() << "seed " << seed << " tokens " << N << " on " << device);
    const std::vector<Result> whole = Apply(reference, DocumentsOf(reference, {0, N}));
    std::vector<HostArray> joined(whole.size());
    for (const TokenRange& part : RandomPartition(seed, N)) {
      const std::vector<Result> results = Apply(problem, DocumentsOf(problem, part));
      ASSERT_EQ(results.size(), whole.size());
      for (size_t i = 0; i < whole.size(); ++i) Join(joined[i], results[i]);
    }
    for (size_t i = 0; i < whole.size(); ++i) {
      EXPECT_LE(RelativeError(joined[i], HostOf(whole[i].value)),
                whole[i].gradient ? tolerance.gradients : tolerance.outputs)
          << "result " << i;
    }
  }
}

void ExpectReplaysSeeTheDocumentsOfNow(const RangeOperator& of, Device device, DType dtype) {
  const uint64_t seed = 5;
  const RangeProblem problem = of.problem(seed, device, dtype);
  const int64_t N = problem.tokens();
  Documents documents(N, N, device, {N / 3, N - N / 5});
  documents.Fill(problem.cu);
  Tensors cotangents;
  Apply(problem, documents, &cotangents);  // takes the workspace
  cuda::Graph graph;
  graph.BeginCapture();
  const std::vector<Result> recorded = Apply(problem, documents, &cotangents);
  graph.EndCapture();
  std::mt19937_64 random(seed);
  for (int packing = 0; packing < 10; ++packing) {
    SCOPED_TRACE(testing::Message()
                 << "seed " << seed << " tokens " << N << " packing " << packing);
    documents.Fill(RandomCuts(random, N));
    graph.Launch();
    std::vector<std::vector<double>> got;  // on the host: what is freed is the graph's too
    for (const Result& result : recorded) got.push_back(result.value.ToDoubles());
    const std::vector<Result> want = Apply(problem, documents, &cotangents);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_EQ(got[i], want[i].value.ToDoubles()) << "result " << i;
    }
  }
}

void ExpectAWindowNeedsNoMore(Device device, DType dtype, const RangeTolerance& tolerance) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const int64_t window = 2 + static_cast<int64_t>(seed * 7);  // of one key dk is zero
    const RangeProblem reference = AttentionProblem(seed, kReference, DType::kF64, window);
    const std::vector<int32_t>& cu = reference.cu;
    for (const TokenRange& part : RandomPartition(seed, reference.tokens())) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << " queries " << part.begin << " to "
                                      << part.end << " on " << device);
      const int64_t low = std::max<int64_t>(0, part.begin - window + 1);
      RangeProblem shard = AttentionProblem(seed, device, dtype, window);
      shard.cu = {0};
      shard.tokens_before = low;
      int64_t first_position = 0;
      for (size_t d = 0; d + 1 < cu.size(); ++d) {
        const int64_t begin = cu[d], end = std::min<int64_t>(cu[d + 1], part.end);
        if (end <= low || end <= begin) continue;
        if (begin < low) first_position = low - begin;
        shard.cu.push_back(static_cast<int32_t>(end - low));
      }
      for (Tensors* tensors : {&shard.of_queries, &shard.of_keys}) {
        for (Tensor& x : *tensors) x = x.Rows(low, part.end);
      }
      const std::vector<Result> want = Apply(reference, DocumentsOf(reference, part));
      const std::vector<Result> got =
          Apply(shard, DocumentsOf(shard, {part.begin - low, part.end - low}, first_position));
      ASSERT_EQ(got.size(), want.size());
      for (size_t i = 0; i < want.size(); ++i) {
        const bool of_keys = want[i].gradient && !want[i].of_queries;
        const Tensor& whole = want[i].value;
        EXPECT_LE(RelativeError(HostOf(got[i].value),
                                HostOf(of_keys ? whole.Rows(low, part.end) : whole)),
                  want[i].gradient ? tolerance.gradients : tolerance.outputs)
            << "result " << i;
      }
    }
  }
}

}  // namespace lt2
