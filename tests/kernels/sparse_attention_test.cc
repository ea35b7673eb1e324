// Selected and compressed attention, block means and selection beyond their cases: what they are in
// special cases, documents, what must not matter, decoding.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "kernels/attention.h"
#include "kernels/block_mean.h"
#include "kernels/case.h"
#include "kernels/choose_blocks.h"
#include "kernels/compressed_attention.h"
#include "kernels/select_blocks.h"
#include "kernels/selected_attention.h"

namespace lt2 {
namespace {

constexpr uint64_t kSeed = 11;
constexpr Device kCpuDevice{Backend::kCpu};
const std::vector<int32_t> kRagged = {0, 1, 30, 64, 65, 131};

Tensor Random(const std::string& name, const Shape& shape, DType dtype = DType::kF64) {
  return Tensor::FromHost(RandomNormal(kSeed, name, shape).values, shape, dtype, kCpuDevice);
}

void ExpectClose(const Tensor& got, const Tensor& want, double tolerance) {
  EXPECT_LE(RelativeError({got.shape(), got.ToDoubles()}, {want.shape(), want.ToDoubles()}),
            tolerance);
}

struct Inputs {
  Tensor q, k, v, dout, blocks;
};
struct Result {
  Tensor o, lse, dq, dk, dv;
};

// Lists of every block up to each query's own, the newest first.
Tensor AllBlocks(const Documents& documents, int64_t G, int64_t block) {
  const auto positions = documents.positions().span<int32_t>();
  const int64_t S = (std::ranges::max(positions) / block) + 1;
  std::vector<int32_t> blocks;
  for (int32_t position : positions) {
    for (int64_t g = 0; g < G; ++g) {
      for (int64_t s = 0; s < S; ++s) {
        blocks.push_back(static_cast<int32_t>(std::max<int64_t>(-1, position / block - s)));
      }
    }
  }
  return Tensor::FromHost(blocks, {documents.tokens(), G, S}, kCpuDevice);
}

Inputs RandomInputs(const Documents& documents, int64_t H, int64_t G, int64_t D, int64_t E,
                    int64_t block, DType dtype = DType::kF64) {
  const int64_t N = documents.tokens();
  return {Random("q", {N, H, D}, dtype), Random("k", {N, G, D}, dtype),
          Random("v", {N, G, E}, dtype), Random("dout", {N, H, E}, dtype),
          AllBlocks(documents, G, block)};
}

template <class Function>
Result Attend(const Inputs& in, const Function& attend) {
  Stream stream{kCpuDevice};
  Tape tape(stream);
  const Var q = tape.Input(in.q, true), k = tape.Input(in.k, true), v = tape.Input(in.v, true);
  Result result;
  const Var o = attend(tape, q, k, v, &result.lse);
  result.o = o.value;
  const std::vector<Tensor> grads = tape.Backward({{o, in.dout}}, std::vector<Var>{q, k, v});
  result.dq = grads[0], result.dk = grads[1], result.dv = grads[2];
  return result;
}

Result Selected(const Inputs& in, const Documents& documents, int64_t block) {
  return Attend(in, [&](Tape& tape, Var q, Var k, Var v, Tensor* lse) {
    return SelectedAttention(tape, q, k, v, in.blocks, {.scale = 0.3, .block = block}, documents,
                             lse);
  });
}

TEST(SelectedAttention, OfAllBlocksIsCausalAttention) {
  const Documents documents = Documents::Of(kRagged, kCpuDevice);
  for (const int64_t block : {1, 7, 64}) {
    for (const int64_t G : {1, 3, 6}) {
      SCOPED_TRACE(testing::Message() << "block " << block << " kv heads " << G);
      const Inputs in = RandomInputs(documents, 6, G, 10, 13, block);
      const Result got = Selected(in, documents, block);
      const Result want = Attend(in, [&](Tape& tape, Var q, Var k, Var v, Tensor* lse) {
        return Attention(tape, q, k, v, {.scale = 0.3}, documents, lse);
      });
      ExpectClose(got.o, want.o, 1e-13);
      ExpectClose(got.lse, want.lse, 1e-13);
      ExpectClose(got.dq, want.dq, 1e-13);
      ExpectClose(got.dk, want.dk, 1e-13);
      ExpectClose(got.dv, want.dv, 1e-13);
    }
  }
}

// Long enough for several parts of its rows in the backward pass.
TEST(SelectedAttention, OfALongDocument) {
  const Documents documents = Documents::Of(std::vector<int32_t>{0, 3, 1203, 1210}, kCpuDevice);
  const Inputs in = RandomInputs(documents, 2, 1, 4, 5, 100);
  const Result got = Selected(in, documents, 100);
  const Result want = Attend(in, [&](Tape& tape, Var q, Var k, Var v, Tensor* lse) {
    return Attention(tape, q, k, v, {.scale = 0.3}, documents, lse);
  });
  ExpectClose(got.o, want.o, 1e-13);
  ExpectClose(got.dq, want.dq, 1e-12);
  ExpectClose(got.dk, want.dk, 1e-12);
  ExpectClose(got.dv, want.dv, 1e-12);
}

TEST(SelectedAttention, WithoutKeysIsZeroAndHasNoGradient) {
  const Documents documents = Documents::Rows(1, 6, kCpuDevice);
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    Inputs in = RandomInputs(documents, 2, 1, 4, 4, 3, dtype);
    for (int32_t& block : in.blocks.span<int32_t>()) block = -1;
    in.blocks.data<int32_t>()[2 * 2] = 1;  // all of it behind query 2
    in.blocks.data<int32_t>()[5 * 2] = 0;
    const Result got = Selected(in, documents, 3);
    const std::vector<double> o = got.o.ToDoubles(), lse = got.lse.ToDoubles();
    const std::vector<double> dq = got.dq.ToDoubles(), dv = got.dv.ToDoubles();
    for (int64_t i = 0; i < 5; ++i) {
      for (int64_t n = i * 8; n < (i + 1) * 8; ++n) {
        EXPECT_EQ(o[n], 0);
        EXPECT_EQ(dq[n], 0);
      }
      EXPECT_EQ(lse[2 * i], -INFINITY);
    }
    EXPECT_TRUE(std::isfinite(lse[10]));
    EXPECT_NE(o[40], 0);
    for (int64_t n = 0; n < 24; ++n) EXPECT_EQ(dv[n] != 0, n < 12) << n;
  }
}

// A document's values and gradients do not depend on what else is in the batch, to the bit, and
// keys that are not selected not even by being NaN.
TEST(SelectedAttention, DocumentsAreIndependent) {
  const Documents documents = Documents::Of(kRagged, kCpuDevice);
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    const Inputs all = RandomInputs(documents, 4, 2, 16, 8, 7, dtype);
    const Result packed = Selected(all, documents, 7);
    for (size_t d = 0; d + 1 < kRagged.size(); ++d) {
      const auto rows = [&](const Tensor& t) { return t.Rows(kRagged[d], kRagged[d + 1]); };
      const Result alone =
          Selected({rows(all.q), rows(all.k), rows(all.v), rows(all.dout), rows(all.blocks)},
                   Documents::Rows(1, kRagged[d + 1] - kRagged[d], kCpuDevice), 7);
      EXPECT_EQ(alone.o.ToDoubles(), rows(packed.o).ToDoubles());
      EXPECT_EQ(alone.dq.ToDoubles(), rows(packed.dq).ToDoubles());
      EXPECT_EQ(alone.dk.ToDoubles(), rows(packed.dk).ToDoubles());
      EXPECT_EQ(alone.dv.ToDoubles(), rows(packed.dv).ToDoubles());
    }
    Inputs poisoned = all;
    poisoned.k = all.k.Clone();
    DispatchFloat(dtype, [&]<class T>() {
      for (T& x : poisoned.k.Rows(31, 64).span<T>()) x = NAN;
    });
    const std::vector<double> got = Selected(poisoned, documents, 7).o.ToDoubles();
    const std::vector<double> want = packed.o.ToDoubles();
    for (int64_t i = 0; i < 131; ++i) {
      EXPECT_EQ(got[i * 32] == want[i * 32], i < 31 || i >= 64) << "token " << i;
    }
  }
}

// Row b of a cache [documents, capacity, ..] holds document b.
Tensor CacheOf(const Tensor& x, const std::vector<int32_t>& cu, int64_t capacity) {
  Shape shape{static_cast<int64_t>(cu.size()) - 1, capacity, x.dim(1), x.dim(2)};
  const Tensor cache = Tensor::Zeros(shape, x.dtype(), kCpuDevice);
  const int64_t row = x.dim(1) * x.dim(2);
  for (int64_t b = 0; b < shape[0]; ++b) {
    cache.Flat(b * capacity * row, (cu[b + 1] - cu[b]) * row)
        .CopyFrom(x.Flat(cu[b] * row, (cu[b + 1] - cu[b]) * row));
  }
  return cache;
}

// Every operator's step against its whole-document form, on every document's last token; means and
// lists to the bit.
TEST(SparseAttention, StepsGiveTheLastToken) {
  constexpr int64_t kCapacity = 70, kBlock = 4, kHeads = 6, kGroups = 2, kWidth = 12;
  const Documents documents = Documents::Of(kRagged, kCpuDevice);
  const int64_t B = documents.count();
  for (const Backend backend : {Backend::kCpu, Backend::kReference}) {
    for (const DType dtype : {DType::kF32, DType::kF64}) {
      if (backend == Backend::kReference && dtype == DType::kF32) continue;
      Stream stream{.device = {backend}};
      Tape tape(stream);
      tape.set_recording(false);
      const Inputs in = RandomInputs(documents, kHeads, kGroups, kWidth, kWidth, kBlock, dtype);
      const SelectBlocksOptions selection{.scale = 0.4, .block = kBlock, .selected = 5};
      const Var q = tape.Input(in.q), k = tape.Input(in.k), v = tape.Input(in.v);
      const Var k_mean = BlockMean(tape, k, kBlock, documents);
      const Var v_mean = BlockMean(tape, v, kBlock, documents);
      const Tensor blocks = SelectBlocks(tape, q.value, k_mean.value, selection, documents);
      const Tensor selected =
          SelectedAttention(tape, q, k, v, blocks, {.scale = 0.4, .block = kBlock}, documents)
              .value;
      const Tensor compressed =
          CompressedAttention(tape, q, k_mean, v_mean, {.scale = 0.4, .block = kBlock}, documents)
              .value;

      const Tensor k_cache = CacheOf(in.k, kRagged, kCapacity);
      const Tensor v_cache = CacheOf(in.v, kRagged, kCapacity);
      const Shape means{B, BlockRows(kCapacity, kBlock), kGroups, kWidth};
      const Tensor k_means = Tensor::Zeros(means, dtype, kCpuDevice);
      const Tensor v_means = Tensor::Zeros(means, dtype, kCpuDevice);
      const Tensor q_last = Tensor::Empty({B, kHeads, kWidth}, dtype, kCpuDevice);
      std::vector<int32_t> lengths;
      for (int64_t b = 0; b < B; ++b) {
        lengths.push_back(kRagged[b + 1] - kRagged[b]);
        q_last.Rows(b, b + 1).CopyFrom(in.q.Rows(kRagged[b + 1] - 1, kRagged[b + 1]));
      }
      // The means as decoding makes them, token by token.
      for (int32_t length = 1; length <= 66; ++length) {
        std::vector<int32_t> now;
        for (int32_t last : lengths) now.push_back(std::min(length, last));
        for (const auto& [cache, mean] :
             {std::pair(k_cache, k_means), std::pair(v_cache, v_means)}) {
          BlockMeanStep(stream, {.x_BSC = cache,
                                 .mean_BRC = mean,
                                 .lengths_B = Tensor::FromHost(now, {B}, kCpuDevice),
                                 .block = kBlock});
        }
      }
      const Tensor lengths_B = Tensor::FromHost(lengths, {B}, kCpuDevice);
      const Tensor blocks_BGS = Tensor::Empty({B, kGroups, 5}, DType::kI32, kCpuDevice);
      SelectBlocksStep(stream, {.q_BHD = q_last,
                                .k_BRGD = k_means,
                                .lengths_B = lengths_B,
                                .blocks_BGS = blocks_BGS,
                                .options = selection});
      const Tensor o = Tensor::Empty(q_last.shape(), dtype, kCpuDevice);
      const Tensor o_means = Tensor::Empty(q_last.shape(), dtype, kCpuDevice);
      SelectedAttentionStep(stream, {.q_BHD = q_last,
                                     .k_BCGD = k_cache,
                                     .v_BCGE = v_cache,
                                     .blocks_BGS = blocks_BGS,
                                     .lengths_B = lengths_B,
                                     .o_BHE = o,
                                     .options = {.scale = 0.4, .block = kBlock}});
      CompressedAttentionStep(stream, {.q_BHD = q_last,
                                       .k_BRGD = k_means,
                                       .v_BRGE = v_means,
                                       .lengths_B = lengths_B,
                                       .o_BHE = o_means,
                                       .options = {.scale = 0.4, .block = kBlock}});
      for (int64_t b = 0; b < B; ++b) {
        SCOPED_TRACE(testing::Message() << dtype << " document " << b);
        const int64_t last = kRagged[b + 1] - 1, first = BlockRow(kRagged[b], kBlock);
        const int64_t whole = lengths[b] / kBlock, row = kGroups * kWidth;
        EXPECT_EQ(k_means.Flat(b * means[1] * row, whole * row).ToDoubles(),
                  k_mean.value.Flat(first * row, whole * row).ToDoubles());
        EXPECT_EQ(blocks_BGS.Rows(b, b + 1).ToDoubles(), blocks.Rows(last, last + 1).ToDoubles());
        ExpectClose(o.Rows(b, b + 1), selected.Rows(last, last + 1), 1e-14);
        ExpectClose(o_means.Rows(b, b + 1), compressed.Rows(last, last + 1), 1e-14);
      }
    }
  }
}

std::vector<int32_t> ListOf(const std::vector<float>& q, const std::vector<float>& k, int64_t heads,
                            int64_t position, const SelectBlocksOptions& options) {
  std::vector<int32_t> list(options.selected, -2);
  ChooseBlocks<float>({.q = q.data(),
                       .k = k.data(),
                       .heads = heads,
                       .D = static_cast<int64_t>(q.size()) / heads,
                       .stride = static_cast<int64_t>(q.size()) / heads,
                       .position = position},
                      options, list.data());
  return list;
}

using List = std::vector<int32_t>;

// Keys of one channel; the query is 1, so that a block's score grows with its key.
TEST(SelectBlocks, TakesTheHighestScoresAndTheThreeThatAreAlwaysThere) {
  const std::vector<float> keys = {-9, 1, 7, 2, 5, 3, -9, -9};
  const SelectBlocksOptions five{.scale = 1, .block = 2, .selected = 5};
  EXPECT_EQ(ListOf({1}, keys, 1, 15, five), (List{0, 2, 4, 6, 7}));
  EXPECT_EQ(ListOf({1}, keys, 1, 14, five), (List{0, 2, 4, 6, 7}));
  EXPECT_EQ(ListOf({-1}, keys, 1, 15, five), (List{0, 1, 3, 6, 7}));
  EXPECT_EQ(ListOf({1}, keys, 1, 15, {.scale = 1, .block = 2, .selected = 3}), (List{0, 6, 7}));
  // The first five tokens are five blocks at most.
  EXPECT_EQ(ListOf({1}, keys, 1, 0, five), (List{0, -1, -1, -1, -1}));
  EXPECT_EQ(ListOf({1}, keys, 1, 9, five), (List{0, 1, 2, 3, 4}));
  EXPECT_EQ(ListOf({1}, keys, 1, 10, five), (List{0, 2, 3, 4, 5}));
}

TEST(SelectBlocks, EqualScoresGoToTheLowerBlock) {
  const SelectBlocksOptions five{.scale = 1, .block = 1, .selected = 5};
  EXPECT_EQ(ListOf({1}, std::vector<float>(9, 2.0f), 1, 8, five), (List{0, 1, 2, 7, 8}));
  EXPECT_EQ(ListOf({1}, {1, 1, 3, 1, 3, 3, 1, 1, 1}, 1, 8, five), (List{0, 2, 4, 7, 8}));
  // All weight on one block: the others' scores are 0, and those always there stay.
  EXPECT_EQ(ListOf({1000}, {1, 1, 9, 1, 1, 1, 1, 1, 1}, 1, 8, five), (List{0, 1, 2, 7, 8}));
  // Nonsense in, a sound list out.
  EXPECT_EQ(ListOf({NAN}, std::vector<float>(9, 2.0f), 1, 8, five), (List{0, 1, 2, 7, 8}));
}

// A head counts by its share, not by its scores: 0.9 of one head and nothing of the other is less
// than two thirds of both.
TEST(SelectBlocks, ScoresAreSharesSummedOverTheGroup) {
  const std::vector<float> q = {1, 0, 0, 1};  // head 0 reads channel 0, head 1 channel 1
  const std::vector<float> keys = {0, 0, 8, -30, 6, 6, 0, 0, 0, 0};
  const SelectBlocksOptions four{.scale = 1, .block = 1, .selected = 4};
  EXPECT_EQ(ListOf(q, keys, 2, 4, four), (List{0, 2, 3, 4}));
  const BlockQuery<float> query{q.data(), keys.data(), 2, 2, 2, 4};
  const std::vector<double> scores = BlockScores(query, four);
  const auto sum = [](std::vector<double> s) {
    double total = 0;
    for (double x : s) total += std::exp(x);
    return total;
  };
  const double first = sum({0, 8, 6, 0, 0}), second = sum({0, -30, 6, 0, 0});
  ASSERT_EQ(scores.size(), 4u);
  EXPECT_NEAR(scores[1], std::exp(8) / first + std::exp(-30) / second, 1e-15);
  EXPECT_NEAR(scores[2], std::exp(6) / first + std::exp(6) / second, 1e-15);
}

TEST(SelectBlocks, ExponentialIsThatOfTheLibrary) {
  EXPECT_EQ(ExpOfNegative(0), 1);
  EXPECT_EQ(ExpOfNegative(-701), 0);
  EXPECT_EQ(ExpOfNegative(-INFINITY), 0);
  EXPECT_TRUE(std::isnan(ExpOfNegative(NAN)));
  for (double x = -1e-9; x > -700; x = 1.01 * x - 1e-3) {
    EXPECT_NEAR(ExpOfNegative(x) / std::exp(x), 1, 5e-16) << x;
  }
}

TEST(SparseAttention, PairsAreCounted) {
  for (const int64_t length : {1, 4, 5, 19, 20, 21, 64}) {
    for (const int64_t block : {1, 4, 7, 100}) {
      double compressed = 0;
      for (int64_t t = 0; t < length; ++t) compressed += static_cast<double>((t + 1) / block);
      EXPECT_EQ(CompressedPairs(length, block), compressed) << length << " " << block;
      for (const int64_t selected : {1, 3, 5}) {
        double pairs = 0;
        for (int64_t t = 0; t < length; ++t) {
          const bool all = t / block + 1 <= selected;
          pairs += static_cast<double>(all ? t + 1 : (selected - 1) * block + t % block + 1);
        }
        EXPECT_EQ(SelectedPairs(length, selected, block), pairs) << length << " " << block;
      }
    }
  }
}

}  // namespace
}  // namespace lt2
