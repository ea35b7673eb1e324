// The fused head and loss beyond its case: chunking, ignored targets, memory, scoring.
#include "kernels/head_loss.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/allocator.h"
#include "kernels/case.h"
#include "kernels/token_log_probs.h"

namespace lt2 {
namespace {

constexpr uint64_t kSeed = 11;
constexpr Device kCpuDevice{Backend::kCpu};

struct Result {
  std::vector<double> sums, dx, dw;
};

Tensor Random(const std::string& name, const Shape& shape, double scale, DType dtype) {
  return Tensor::FromHost(RandomNormal(kSeed, name, shape, scale).values, shape, dtype, kCpuDevice);
}

std::vector<int32_t> RandomTargets(int64_t N, int64_t V, int ignore_every) {
  std::vector<int32_t> targets;
  for (double t : RandomInts(kSeed, "targets", {N}, 0, V).values) {
    const bool ignore = ignore_every > 0 && targets.size() % ignore_every == 0;
    targets.push_back(ignore ? -100 : static_cast<int32_t>(t));
  }
  return targets;
}

const std::vector<double> kSeedOfSums = {0.5, 1e-3, 99};  // the count has no gradient

// Whether the forward is told of the gradient of the sums.
enum class Seed { kUnknown, kKnown, kAnother };

Result RunLoss(int64_t N, int64_t D, int64_t V, const std::vector<int32_t>& targets,
               HeadLossOptions options, DType dtype, Seed told = Seed::kUnknown) {
  Stream stream{kCpuDevice};
  Tape tape(stream);
  Param w({.name = "w", .shape = {V, D}}, dtype, kCpuDevice);
  w.value = Random("w", {V, D}, 0.3, dtype);
  w.BindGradient(Tensor::Zeros({V, D}, dtype, kCpuDevice));
  w.ExpectUses(1);
  const Var x = tape.Input(Random("x", {N, D}, 1, dtype), true);
  const Tensor seed = Tensor::FromHost(kSeedOfSums, {3}, DType::kF64, kCpuDevice);
  if (told != Seed::kUnknown) options.dsums = told == Seed::kKnown ? seed : seed.Clone();
  const Var sums = HeadLoss(tape, x, w, Tensor::FromHost(targets, {N}, kCpuDevice), options);
  EXPECT_EQ(w.outstanding(), 1);
  const std::vector<Var> wrt = {x};
  const Tensor dx = tape.Backward({{sums, seed}}, wrt)[0];
  EXPECT_EQ(w.outstanding(), 0);
  return {sums.value.ToDoubles(), dx.ToDoubles(), w.main_grad.ToDoubles()};
}

double Error(const std::vector<double>& a, const std::vector<double>& b) {
  const Shape shape{static_cast<int64_t>(a.size())};
  return RelativeError({shape, a}, {shape, b});
}

// Both ways of keeping: small vocabularies keep probabilities, large ones compute logits again.
TEST(HeadLoss, ChunksDoNotMatter) {
  for (const auto& [N, V] : {std::pair<int64_t, int64_t>{150, 97}, {140, 16000}}) {
    const std::vector<int32_t> targets = RandomTargets(N, V, 7);
    const Result whole = RunLoss(N, 6, V, targets, {.chunk_rows = N}, DType::kF64);
    for (int64_t chunk_rows : {1, 7, 64, 149, 0}) {
      SCOPED_TRACE(chunk_rows);
      const Result chunked = RunLoss(N, 6, V, targets, {.chunk_rows = chunk_rows}, DType::kF64);
      EXPECT_LE(Error(chunked.sums, whole.sums), 1e-15);
      EXPECT_LE(Error(chunked.dx, whole.dx), 1e-14);
      EXPECT_LE(Error(chunked.dw, whole.dw), 1e-14);
    }
  }
}

TEST(HeadLoss, AllIgnoredIsZeroAndFinite) {
  for (int64_t V : {97, 16000}) {
    for (Seed told : {Seed::kUnknown, Seed::kKnown}) {
      const Result result =
          RunLoss(150, 6, V, std::vector<int32_t>(150, -1), {.chunk_rows = 64}, DType::kF32, told);
      for (const std::vector<double>& values : {result.sums, result.dx, result.dw}) {
        for (double x : values) ASSERT_EQ(x, 0);
      }
    }
  }
}

// A forward that knows the seed makes the gradients that backward would: with the same bits from
// probabilities that are kept, and as exact as logits computed again.
TEST(HeadLoss, KnownSeedMakesTheSameGradients) {
  for (const auto& [N, V] : {std::pair<int64_t, int64_t>{150, 97}, {140, 16000}}) {
    const std::vector<int32_t> targets = RandomTargets(N, V, 7);
    for (DType dtype : {DType::kF32, DType::kF64}) {
      for (int64_t chunk_rows : {1, 64, 0}) {
        SCOPED_TRACE(testing::Message() << V << " " << Name(dtype) << " rows " << chunk_rows);
        const HeadLossOptions keep{.chunk_rows = chunk_rows, .keep_at_most = N * V};
        const HeadLossOptions again{.chunk_rows = chunk_rows, .keep_at_most = 0};
        const Result known = RunLoss(N, 6, V, targets, again, dtype, Seed::kKnown);
        const Result kept = RunLoss(N, 6, V, targets, keep, dtype);
        EXPECT_EQ(known.sums, kept.sums);
        EXPECT_EQ(known.dx, kept.dx);
        EXPECT_EQ(known.dw, kept.dw);
        const Result recomputed = RunLoss(N, 6, V, targets, again, dtype);
        const double tolerance = dtype == DType::kF64 ? 1e-14 : 2e-6;
        EXPECT_EQ(known.sums, recomputed.sums);
        EXPECT_LE(Error(known.dx, recomputed.dx), tolerance);
        EXPECT_LE(Error(known.dw, recomputed.dw), tolerance);
      }
    }
  }
}

// Inside a segment that is computed twice only the pass that backward follows adds to w's gradient.
TEST(HeadLoss, KnownSeedInsideRecompute) {
  constexpr int64_t N = 20, D = 6, V = 50;
  const Tensor targets = Tensor::FromHost(RandomTargets(N, V, 7), {N}, kCpuDevice);
  Stream stream{kCpuDevice};
  Tape tape(stream);
  Param w({.name = "w", .shape = {V, D}}, DType::kF64, kCpuDevice);
  w.value = Random("w", {V, D}, 0.3, DType::kF64);
  w.BindGradient(Tensor::Zeros({V, D}, DType::kF64, kCpuDevice));
  w.ExpectUses(1);
  const Tensor seed = Tensor::FromHost(kSeedOfSums, {3}, DType::kF64, kCpuDevice);
  const std::vector<Var> x = {tape.Input(Random("x", {N, D}, 1, DType::kF64), true)};
  const std::vector<Var> sums = tape.Recompute(x, [&](Tape& inner, std::span<const Var> in) {
    return std::vector<Var>{HeadLoss(inner, in[0], w, targets, {.dsums = seed})};
  });
  const Tensor dx = tape.Backward({{sums[0], seed}}, x)[0];
  const Result plain = RunLoss(N, D, V, RandomTargets(N, V, 7), {}, DType::kF64);
  EXPECT_EQ(w.outstanding(), 0);
  EXPECT_EQ(sums[0].value.ToDoubles(), plain.sums);
  EXPECT_EQ(dx.ToDoubles(), plain.dx);
  EXPECT_EQ(w.main_grad.ToDoubles(), plain.dw);
}

// What is not recorded has no backward, so nothing may be added.
TEST(HeadLoss, KnownSeedUnrecorded) {
  constexpr int64_t N = 9, D = 4, V = 30;
  Stream stream{kCpuDevice};
  Tape tape(stream);
  tape.set_recording(false);
  Param w({.name = "w", .shape = {V, D}}, DType::kF64, kCpuDevice);
  w.value = Random("w", {V, D}, 0.3, DType::kF64);
  w.BindGradient(Tensor::Zeros({V, D}, DType::kF64, kCpuDevice));
  const Tensor seed = Tensor::FromHost(kSeedOfSums, {3}, DType::kF64, kCpuDevice);
  HeadLoss(tape, tape.Input(Random("x", {N, D}, 1, DType::kF64)), w,
           Tensor::FromHost(RandomTargets(N, V, 0), {N}, kCpuDevice), {.dsums = seed});
  for (double x : w.main_grad.ToDoubles()) ASSERT_EQ(x, 0);
}

// Rows that are not counted get no gradient and change no other row.
TEST(HeadLoss, IgnoredRowsAreAbsentRows) {
  std::vector<int32_t> targets = RandomTargets(40, 50, 0);
  const Result all = RunLoss(40, 6, 50, targets, {}, DType::kF64);
  targets[13] = -100;
  const Result without = RunLoss(40, 6, 50, targets, {}, DType::kF64);
  EXPECT_EQ(all.sums[kCountedSum], 40);
  EXPECT_EQ(without.sums[kCountedSum], 39);
  EXPECT_LT(without.sums[kLossSum], all.sums[kLossSum]);
  for (size_t i = 0; i < all.dx.size(); ++i) {
    ASSERT_EQ(without.dx[i], i / 6 == 13 ? 0 : all.dx[i]) << i;
  }
}

// Logits far beyond exp's range: the loss is their difference.
TEST(HeadLoss, HugeLogits) {
  Stream stream{kCpuDevice};
  for (DType dtype : {DType::kF32, DType::kF64}) {
    Tape tape(stream);
    tape.set_recording(false);
    Param w({.name = "w", .shape = {2, 1}}, dtype, kCpuDevice);
    w.value = Tensor::FromHost(std::vector<double>{1000, -1000}, {2, 1}, dtype, kCpuDevice);
    const Var x = tape.Input(Tensor::FromHost(std::vector<double>{1}, {1, 1}, dtype, kCpuDevice));
    const Tensor targets = Tensor::FromHost(std::vector<int32_t>{1}, {1}, kCpuDevice);
    EXPECT_EQ(HeadLoss(tape, x, w, targets).value.ToDoubles(), (std::vector<double>{2000, 1e6, 1}));
  }
}

TEST(HeadLossDeathTest, AnotherSeedThanWasSaid) {
  EXPECT_DEATH(RunLoss(3, 2, 5, {0, 4, 1}, {}, DType::kF32, Seed::kAnother),
               "another gradient than was said");
}

TEST(HeadLossDeathTest, TargetBeyondVocabulary) {
  EXPECT_DEATH(RunLoss(3, 2, 5, {0, 5, 1}, {}, DType::kF32), "target of token 1");
}

// 1024 tokens of a vocabulary of 50,000 would be 195 MiB of logits; a chunk of 128 is 24 MiB.
TEST(HeadLoss, MemoryIsBoundedByAChunk) {
  constexpr int64_t N = 1024, D = 64, V = 50000;
  const Device meta{Backend::kMeta};
  for (bool known : {false, true}) {
    MetaMeter meter;
    Stream stream{meta};
    Tape tape(stream);
    Param w({.name = "w", .shape = {V, D}}, DType::kF32, meta);
    w.value = Tensor::Empty({V, D}, DType::kF32, meta);
    w.BindGradient(Tensor::Empty({V, D}, DType::kF32, meta));
    w.ExpectUses(1);
    const Var x = tape.Input(Tensor::Empty({N, D}, DType::kF32, meta), true);
    const int64_t before = meter.memory().live;
    const Tensor seed = Tensor::Empty({3}, DType::kF64, meta);
    const Var sums = HeadLoss(tape, x, w, Tensor::Empty({N}, DType::kI32, meta),
                              {.dsums = known ? seed : Tensor()});
    const std::vector<Var> wrt = {x};
    tape.Backward({{sums, seed}}, wrt);
    EXPECT_LT(meter.memory().peak - before, (128 * V + 2 * N * D + 4 * N) * 4 + 4096);
    EXPECT_EQ(meter.flops(), (known ? 3 : 4) * 2.0 * N * D * V);
  }
}

TEST(TokenLogProbs, MatchesTheDefinition) {
  constexpr int64_t N = 37, V = 5000;
  const Tensor logits = Random("logits", {N, V}, 5, DType::kF64);
  const std::vector<int32_t> targets = RandomTargets(N, V, 6);
  for (DType dtype : {DType::kF64, DType::kF32}) {
    Stream stream{kCpuDevice};
    const Tensor values = Tensor::FromHost(logits.ToDoubles(), {N, V}, dtype, kCpuDevice);
    Tensor log_probs = Tensor::Empty({N}, dtype, kCpuDevice);
    Tensor argmax = Tensor::Empty({N}, DType::kI32, kCpuDevice);
    TokenLogProbs(stream, {.logits_NV = values,
                           .targets_N = Tensor::FromHost(targets, {N}, kCpuDevice),
                           .log_probs_N = log_probs,
                           .argmax_N = argmax});
    const std::vector<double> z = values.ToDoubles(), got = log_probs.ToDoubles();
    for (int64_t i = 0; i < N; ++i) {
      double sum = 0;
      int64_t best = 0;
      for (int64_t v = 0; v < V; ++v) {
        sum += std::exp(z[i * V + v]);
        if (z[i * V + v] > z[i * V + best]) best = v;
      }
      const double want = targets[i] < 0 ? 0 : z[i * V + targets[i]] - std::log(sum);
      EXPECT_NEAR(got[i], want, dtype == DType::kF64 ? 1e-12 : 2e-5);
      EXPECT_EQ(argmax.data<int32_t>()[i], best);
    }
  }
}

// Equal logits: the lowest index wins, as greedy decoding needs to be reproducible.
TEST(TokenLogProbs, FirstOfEqualLogits) {
  Stream stream{kCpuDevice};
  std::vector<double> z(100, 0.0);
  z[41] = z[77] = z[99] = 3;
  Tensor argmax = Tensor::Empty({1}, DType::kI32, kCpuDevice);
  TokenLogProbs(stream, {.logits_NV = Tensor::FromHost(z, {1, 100}, DType::kF32, kCpuDevice),
                         .targets_N = {},
                         .log_probs_N = {},
                         .argmax_N = argmax});
  EXPECT_EQ(argmax.data<int32_t>()[0], 41);
}

}  // namespace
}  // namespace lt2
