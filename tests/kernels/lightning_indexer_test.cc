// The indexer beyond its case: what it chooses, in training, decoding and the reference; its loss
// on any inputs.
#include "kernels/lightning_indexer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "kernels/case.h"
#include "kernels/elementwise.h"
#include "kernels/indexer_loss.h"
#include "kernels/selected_attention.h"

namespace lt2 {
namespace {

constexpr Device kCpuDevice{Backend::kCpu}, kReferenceDevice{Backend::kReference};

Tensor Random(uint64_t seed, const std::string& name, const Shape& shape,
              Device device = kCpuDevice, DType dtype = DType::kF64) {
  return Tensor::FromHost(RandomNormal(seed, name, shape).values, shape, dtype, device);
}

struct Indexer {
  Tensor q, k, w;
};

Indexer RandomIndexer(uint64_t seed, int64_t N, int64_t H, int64_t D, bool weights,
                      Device device = kCpuDevice, DType dtype = DType::kF64) {
  return {Random(seed, "q", {N, H, D}, device, dtype), Random(seed, "k", {N, D}, device, dtype),
          weights ? Random(seed, "w", {N, H}, device, dtype) : Tensor()};
}

std::vector<int32_t> Choose(const Indexer& in, int64_t selected, const Documents& documents) {
  Stream stream{.device = in.q.device()};
  Tape tape(stream);
  const Tensor keys = LightningIndexer(tape, in.q, in.k, in.w, selected, documents);
  return {keys.span<int32_t>().begin(), keys.span<int32_t>().end()};
}

// The formula, without the order of sums that index_score.h fixes.
double Score(const Indexer& in, int64_t t, int64_t s) {
  const int64_t H = in.q.dim(1), D = in.q.dim(2);
  double score = 0;
  for (int64_t h = 0; h < H; ++h) {
    double r = 0;
    for (int64_t d = D - 1; d >= 0; --d) {
      r += in.q.data<double>()[(t * H + h) * D + d] * in.k.data<double>()[s * D + d];
    }
    score += in.w.defined() ? in.w.data<double>()[t * H + h] * std::max(r, 0.0)
                            : r / static_cast<double>(H);
  }
  return score;
}

// No key that was left out beats one that was taken, and every list has what it must have.
TEST(LightningIndexer, TakesTheBestOfTheDocument) {
  const std::vector<int32_t> cu = {0, 1, 40, 57, 200};
  const Documents documents = Documents::Of(cu, kCpuDevice);
  for (const bool weights : {true, false}) {
    for (const int64_t S : {1, 16, 31, 300}) {
      const Indexer in = RandomIndexer(3, 200, 3, 6, weights);
      const std::vector<int32_t> keys = Choose(in, S, documents);
      for (int64_t t = 0; t < 200; ++t) {
        const int64_t position = documents.positions().data<int32_t>()[t], begin = t - position;
        const int64_t count = std::min(S, position + 1);
        double worst_in = INFINITY, best_out = -INFINITY;
        for (int64_t s = 0, next = 0; s <= position; ++s) {
          const bool taken = next < count && keys[t * S + next] == s;
          next += taken;
          const double score = Score(in, t, begin + s);
          if (taken) worst_in = std::min(worst_in, score);
          if (!taken) best_out = std::max(best_out, score);
          if (s == position) {
            ASSERT_EQ(next, count) << "token " << t << " best " << S;
          }
        }
        EXPECT_GE(worst_in, best_out - 1e-12) << "token " << t << " best " << S;
        for (int64_t i = count; i < S; ++i) EXPECT_EQ(keys[t * S + i], -1);
      }
    }
  }
}

TEST(LightningIndexer, OfEqualScoresTheLowerPositionComesFirst) {
  // Scores 0 (q · k < 0), 1, 0, 1, 0, … : a list of 4 takes the ones, then zeros from the front.
  constexpr int64_t N = 40, S = 12;
  Indexer in{Tensor::Zeros({N, 1, 1}, DType::kF64, kCpuDevice),
             Tensor::Zeros({N, 1}, DType::kF64, kCpuDevice),
             Tensor::Zeros({N, 1}, DType::kF64, kCpuDevice)};
  for (int64_t t = 0; t < N; ++t) {
    in.q.data<double>()[t] = 1, in.w.data<double>()[t] = 1;
    in.k.data<double>()[t] = t % 2 ? 1.0 : -static_cast<double>(t + 1);
  }
  const std::vector<int32_t> keys = Choose(in, S, Documents::Rows(1, N, kCpuDevice));
  const auto row = [&](int64_t t) {
    return std::vector<int32_t>(keys.begin() + t * S, keys.begin() + (t + 1) * S);
  };
  EXPECT_EQ(row(15), (std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6, 7, 9, 11, 13, 15}));
  EXPECT_EQ(row(39), (std::vector<int32_t>{1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23}));
  EXPECT_EQ(row(1), (std::vector<int32_t>{0, 1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1}));
}

// A NaN is the worst of all: nothing crashes, and the lists are still lists.
TEST(LightningIndexer, NaNIsChosenLast) {
  constexpr int64_t N = 50, S = 5;
  Indexer in = RandomIndexer(5, N, 2, 4, true);
  for (const int64_t s : {3, 10, 11, 12, 40}) {
    in.k.data<double>()[s * 4] = std::numeric_limits<double>::quiet_NaN();
  }
  const std::vector<int32_t> keys = Choose(in, S, Documents::Rows(1, N, kCpuDevice));
  for (int64_t t = 15; t < N; ++t) {
    for (int64_t i = 0; i < S; ++i) {
      EXPECT_TRUE(std::isfinite(in.k.data<double>()[keys[t * S + i] * 4])) << t;
      if (i > 0) {
        EXPECT_LT(keys[t * S + i - 1], keys[t * S + i]) << t;
      }
    }
  }
}

// float32, float64 and the reference, whole sequences and one token against a cache: the same keys,
// where the inputs are the same numbers.
TEST(LightningIndexer, TrainingDecodingAndReferenceChooseTheSame) {
  constexpr int64_t B = 3, T = 120, H = 4, D = 7, S = 20, kCapacity = 130;
  for (const bool weights : {true, false}) {
    for (const uint64_t seed : {1, 2, 3}) {
      SCOPED_TRACE(absl::StrCat("seed ", seed));
      const std::vector<int32_t> want =
          Choose(RandomIndexer(seed, B * T, H, D, weights, kReferenceDevice), S,
                 Documents::Rows(B, T, kReferenceDevice));
      for (const Device device : {kCpuDevice, kReferenceDevice}) {
        for (const DType dtype : {DType::kF32, DType::kF64}) {
          if (device.backend == Backend::kReference && dtype == DType::kF32) continue;
          const Indexer in = RandomIndexer(seed, B * T, H, D, weights, device, dtype);
          EXPECT_EQ(Choose(in, S, Documents::Rows(B, T, device)), want);
          const Tensor cache = Tensor::Zeros({B, kCapacity, D}, dtype, device);
          for (int64_t b = 0; b < B; ++b) {
            cache.Flat(b * kCapacity * D, T * D).CopyFrom(in.k.Rows(b * T, (b + 1) * T));
          }
          const Tensor q = Tensor::Empty({B, H, D}, dtype, device);
          const Tensor w = weights ? Tensor::Empty({B, H}, dtype, device) : Tensor();
          const Tensor keys = Tensor::Empty({B, S}, DType::kI32, device);
          for (const int32_t length : {1, 5, 20, 21, 64, 120}) {
            std::vector<int32_t> lengths;
            for (int32_t b = 0; b < B; ++b) {
              lengths.push_back(std::max(1, length - 7 * b));
              const int64_t row = b * T + lengths[b] - 1;
              q.Rows(b, b + 1).CopyFrom(in.q.Rows(row, row + 1));
              if (weights) w.Rows(b, b + 1).CopyFrom(in.w.Rows(row, row + 1));
            }
            Stream stream{.device = device};
            LightningIndexerStep(stream, {.q_BHD = q,
                                          .k_BCD = cache,
                                          .w_BH = w,
                                          .lengths_B = Tensor::FromHost(lengths, {B}, device),
                                          .keys_BS = keys});
            for (int64_t b = 0; b < B; ++b) {
              const int64_t row = b * T + lengths[b] - 1;
              EXPECT_TRUE(std::equal(&keys.data<int32_t>()[b * S], &keys.data<int32_t>()[b * S] + S,
                                     want.begin() + row * S))
                  << "sequence " << b << " length " << lengths[b];
            }
          }
        }
      }
    }
  }
}

struct LossResult {
  double loss;
  std::vector<double> da, db, dw;
};

constexpr int64_t kLossHeads = 4;

// Two ranks in turn: the first to sum leaves what it has to the second.
class TwoRanks final : public RankLink {
 public:
  int rank() const override { return 0; }
  int size() const override { return 2; }
  void Sum(const Tensor& x) override {
    const Tensor mine = x.Clone();
    if (others_.defined()) {
      Stream stream{.device = x.device()};
      AccumulateInto(stream, x, others_);
    }
    others_ = mine;
  }
  void Max(const Tensor&) override { CHECK(false); }

 private:
  Tensor others_;
};

// The loss on lists that the indexer itself chose, against the attention over these lists of heads
// [first, first + H).
LossResult RunLoss(uint64_t seed, Device device, int64_t first = 0, int64_t H = kLossHeads,
                   RankLink* link = nullptr) {
  constexpr int64_t N = 150, J = 4, C = 6, D = 10, S = 16;
  Stream stream{.device = device};
  Tape tape(stream);
  const Documents documents = Documents::Of(std::vector<int32_t>{0, 30, 31, 150}, device);
  const Indexer in = RandomIndexer(seed, N, J, C, true, device);
  const Tensor keys = LightningIndexer(tape, in.q, in.k, in.w, S, documents);
  const Tensor all_heads = Random(seed, "main q", {N, kLossHeads, D});
  const Tensor q = Tensor::Empty({N, H, D}, DType::kF64, kCpuDevice);
  for (int64_t t = 0; t < N; ++t) {
    q.Flat(t * H * D, H * D).CopyFrom(all_heads.Flat((t * kLossHeads + first) * D, H * D));
  }
  IndexerTarget target{.q_NHD = q.To(device),
                       .k_NGD = Random(seed, "main k", {N, 1, D}, device),
                       .keys_NS = keys,
                       .scale = 0.4,
                       .documents = documents};
  SelectedAttention(tape, tape.Input(target.q_NHD), tape.Input(target.k_NGD),
                    tape.Input(target.k_NGD), keys.Reshape({N, 1, S}), {.scale = 0.4}, documents,
                    &target.lse_NH);
  const std::vector<Var> wrt = {tape.Input(in.q, true), tape.Input(in.k, true),
                                tape.Input(in.w, true)};
  const Var loss = IndexerLoss(tape, wrt[0], wrt[1], wrt[2], target, 1, link);
  const std::vector<double> one = {1};
  const std::vector<Tensor> grads =
      tape.Backward({{loss, Tensor::FromHost(one, {1}, DType::kF64, device)}}, wrt);
  return {loss.value.data<double>()[0], grads[0].ToDoubles(), grads[1].ToDoubles(),
          grads[2].ToDoubles()};
}

void ExpectClose(const std::vector<double>& got, const std::vector<double>& want) {
  const Shape shape = {static_cast<int64_t>(want.size())};
  EXPECT_LE(RelativeError({shape, got}, {shape, want}), 1e-12);
}

TEST(IndexerLoss, CpuAgreesWithReferenceOnItsOwnLists) {
  for (const uint64_t seed : {1, 2, 3}) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    const LossResult got = RunLoss(seed, kCpuDevice), want = RunLoss(seed, kReferenceDevice);
    EXPECT_NEAR(got.loss, want.loss, 1e-12 * want.loss);
    EXPECT_GT(want.loss, 1);
    ExpectClose(got.da, want.da);
    ExpectClose(got.db, want.db);
    ExpectClose(got.dw, want.dw);
  }
}

// The loss is of all heads, and the gradients of the ranks add up to theirs.
TEST(IndexerLoss, OfHeadsOnTwoRanks) {
  for (const Device device : {kCpuDevice, kReferenceDevice}) {
    for (const uint64_t seed : {1, 2}) {
      SCOPED_TRACE(absl::StrCat("seed ", seed));
      const LossResult want = RunLoss(seed, device);
      TwoRanks link;
      RunLoss(seed, device, 0, 2, &link);
      LossResult got = RunLoss(seed, device, 2, 2, &link);
      EXPECT_NEAR(got.loss, want.loss, 1e-12 * want.loss);
      const LossResult other = RunLoss(seed, device, 0, 2, &link);
      EXPECT_NEAR(other.loss, want.loss, 1e-12 * want.loss);
      const auto add = [](std::vector<double>& to, const std::vector<double>& x) {
        std::ranges::transform(to, x, to.begin(), std::plus<>());
      };
      add(got.da, other.da), add(got.db, other.db), add(got.dw, other.dw);
      ExpectClose(got.da, want.da);
      ExpectClose(got.db, want.db);
      ExpectClose(got.dw, want.dw);
    }
  }
}

// Where the indexer's scores are the attention's logits (one head, no score below 0), the loss and
// its gradients are 0.
TEST(IndexerLoss, VanishesWhereTheIndexerIsTheAttention) {
  constexpr int64_t N = 40, D = 6, S = 8;
  Stream stream{.device = kCpuDevice};
  Tape tape(stream);
  const Documents documents = Documents::Rows(1, N, kCpuDevice);
  const Tensor q = Random(1, "q", {N, 1, D}), k = Random(1, "k", {N, D});
  for (double& x : q.span<double>()) x = std::abs(x);
  for (double& x : k.span<double>()) x = std::abs(x);
  const Tensor w = Tensor::FromHost(std::vector<double>(N, 0.3), {N, 1}, DType::kF64, kCpuDevice);
  IndexerTarget target{.q_NHD = q,
                       .k_NGD = k.Reshape({N, 1, D}),
                       .keys_NS = LightningIndexer(tape, q, k, w, S, documents),
                       .scale = 0.3,
                       .documents = documents};
  SelectedAttention(tape, tape.Input(q), tape.Input(target.k_NGD), tape.Input(target.k_NGD),
                    target.keys_NS.Reshape({N, 1, S}), {.scale = 0.3}, documents, &target.lse_NH);
  const std::vector<Var> wrt = {tape.Input(q, true), tape.Input(k, true), tape.Input(w, true)};
  const Var loss = IndexerLoss(tape, wrt[0], wrt[1], wrt[2], target, 1);
  EXPECT_NEAR(loss.value.data<double>()[0], 0, 1e-12);
  const std::vector<double> one = {1};
  for (const Tensor& grad :
       tape.Backward({{loss, Tensor::FromHost(one, {1}, DType::kF64, kCpuDevice)}}, wrt)) {
    for (const double g : grad.ToDoubles()) EXPECT_NEAR(g, 0, 1e-12);
  }
}

}  // namespace
}  // namespace lt2
