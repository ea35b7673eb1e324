// Operators whose parameter ranks divide, on a GPU: each rank alone, with what the others say as
// ranks on the CPU said it in float64.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/cuda.h"
#include "core/strings.h"
#include "kernels/case.h"
#include "parallel/tensor_shard.h"
#include "parallel/thread_communicator.h"
#include "split_operators.h"

namespace lt2 {
namespace {

using Values = std::vector<double>;
constexpr int kRanks = 2;

// What a rank gave to each exchange.
using Said = std::vector<Values>;

class Recorder final : public RankLink {
 public:
  Recorder(RankLink& link, Said* said) : link_(link), said_(said) {}
  int rank() const override { return link_.rank(); }
  int size() const override { return link_.size(); }
  void Sum(const Tensor& x) override {
    said_->push_back(x.ToDoubles());
    link_.Sum(x);
  }
  void Max(const Tensor& x) override {
    said_->push_back(x.ToDoubles());
    link_.Max(x);
  }

 private:
  RankLink& link_;
  Said* said_;
};

class Replay final : public RankLink {
 public:
  Replay(int rank, const Said& of_other) : rank_(rank), of_other_(of_other) {}
  int rank() const override { return rank_; }
  int size() const override { return kRanks; }
  void Sum(const Tensor& x) override {
    Combine(x, [](double a, double b) { return a + b; });
  }
  void Max(const Tensor& x) override {
    Combine(x, [](double a, double b) { return std::max(a, b); });
  }
  bool done() const { return next_ == of_other_.size(); }

 private:
  template <class Fn>
  void Combine(const Tensor& x, const Fn& fn) {
    ASSERT_LT(next_, of_other_.size());
    const Values& other = of_other_[next_++];
    Values values = x.ToDoubles();
    ASSERT_EQ(values.size(), other.size());
    std::transform(values.begin(), values.end(), other.begin(), values.begin(), fn);
    x.CopyFrom(Tensor::FromHost(values, x.shape(), x.dtype(), x.device()));
  }

  const int rank_;
  const Said& of_other_;
  size_t next_ = 0;
};

double Error(const Values& got, const Values& want) {
  const Shape shape{static_cast<int64_t>(want.size())};
  return RelativeError({{static_cast<int64_t>(got.size())}, got}, {shape, want});
}

// run(part) gives the Outcome of a part, on any device.
template <class Run>
void ExpectAsOnTheCpu(const Run& run) {
  if (cuda::DeviceCount() == 0) GTEST_SKIP() << "there is no GPU here";
  std::vector<Said> said(kRanks);
  std::vector<Outcome> want(kRanks);
  RunRanks(kRanks, [&](Communicator& tp) {
    TensorShard shard(tp, /*sequence=*/false, 1);
    Recorder recorder(shard, &said[tp.rank()]);
    want[tp.rank()] = run(Part{.device = {}, .link = &recorder});
  });
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const double of_values = dtype == DType::kF32 ? 5e-6 : 2e-2;
    const double of_gradients = dtype == DType::kF32 ? 2e-5 : 4e-2;
    for (int rank = 0; rank < kRanks; ++rank) {
      SCOPED_TRACE(StrCat("rank ", rank, " ", Name(dtype)));
      Replay link(rank, said[1 - rank]);
      const Outcome got = run(Part{.device = {Backend::kCuda}, .dtype = dtype, .link = &link});
      EXPECT_TRUE(link.done());
      EXPECT_LE(Error(got.y, want[rank].y), of_values);
      EXPECT_LE(Error(got.dx, want[rank].dx), of_gradients);
      EXPECT_LE(Error(got.dw, want[rank].dw), of_gradients);
    }
  }
}

TEST(SplitOperatorsGpu, HeadLoss) {
  for (const int64_t V : {130, 97, 4096}) {
    for (const auto& [keep, known, per_token] :
         {std::array{true, false, false}, {false, false, true}, {true, true, false}}) {
      const HeadProblem problem{.N = 150,
                                .D = 64,
                                .V = V,
                                .chunk_rows = 64,
                                .keep = keep,
                                .known = known,
                                .per_token = per_token,
                                .scale = 0.1};
      SCOPED_TRACE(problem.ToString());
      ExpectAsOnTheCpu([&](const Part& part) { return RunHeadLoss(problem, part); });
    }
  }
}

TEST(SplitOperatorsGpu, Embedding) {
  ExpectAsOnTheCpu([](const Part& part) { return RunEmbedding({}, part); });
  ExpectAsOnTheCpu(
      [](const Part& part) { return RunEmbedding({.N = 500, .V = 90, .D = 33}, part); });
}

TEST(SplitOperatorsGpu, RmsNorm) {
  for (const int64_t C : {48, 66, 4096}) {
    ExpectAsOnTheCpu([&](const Part& part) { return RunSplitRmsNorm({.N = 300, .C = C}, part); });
  }
}

}  // namespace
}  // namespace lt2
