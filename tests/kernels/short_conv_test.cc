// The short convolution cut in time: tails, steps and documents.
#include "kernels/short_conv.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "kernels/case.h"

namespace lt2 {
namespace {

struct Instance {
  int64_t tokens, channels, width;
  bool bias, silu;
};

class ShortConvCut : public testing::TestWithParam<std::tuple<Backend, Instance>> {
 protected:
  Device device() const { return {std::get<0>(GetParam())}; }
  const Instance& n() const { return std::get<1>(GetParam()); }

  Tensor Random(const std::string& name, const Shape& shape) const {
    return Tensor::FromHost(RandomNormal(5, name, shape).values, shape, DType::kF64, device());
  }
  std::unique_ptr<Param> Weight(const std::string& name, const Shape& shape) const {
    auto param = std::make_unique<Param>(ParamSpec{name, shape, {}}, DType::kF64, device());
    param->value = Random(name, shape);
    param->BindGradient(Tensor::Zeros(shape, DType::kF64, device()));
    return param;
  }
  Documents One(int64_t tokens) const { return Documents::Rows(1, tokens, device()); }

  Tensor Conv(const Tensor& x, const Documents& documents, const Tensor& tail) {
    Tape tape(stream_);
    return ShortConv(tape, tape.Input(x), *w_, bias_.get(), n().silu, documents, tail).value;
  }
  Tensor Tail(const Tensor& x, const Documents& documents, const Tensor& before) {
    Tensor tail =
        Tensor::Empty({documents.capacity(), n().width - 1, n().channels}, DType::kF64, device());
    ShortConvTail(stream_,
                  {.x_NC = x, .tail_DPC = before, .documents = documents, .tail_out_DPC = tail});
    return tail;
  }

  void SetUp() override {
    stream_ = {device()};
    w_ = Weight("w", {n().channels, n().width});
    if (n().bias) bias_ = Weight("bias", {n().channels});
    x_ = Random("x", {n().tokens, n().channels});
  }

  Stream stream_;
  std::unique_ptr<Param> w_, bias_;
  Tensor x_;
};

TEST_P(ShortConvCut, SplittingAndPassingTheTailChangesNothing) {
  const std::vector<double> want = Conv(x_, One(n().tokens), {}).ToDoubles();
  for (int64_t cut : {int64_t{1}, int64_t{2}, n().tokens / 2, n().tokens - 1}) {
    SCOPED_TRACE(absl::StrCat("cut ", cut));
    const Tensor head = x_.Rows(0, cut), tail = x_.Rows(cut, n().tokens);
    std::vector<double> got = Conv(head, One(cut), {}).ToDoubles();
    const Tensor passed = Tail(head, One(cut), {});
    const std::vector<double> after = Conv(tail, One(n().tokens - cut), passed).ToDoubles();
    got.insert(got.end(), after.begin(), after.end());
    EXPECT_EQ(got, want);
    // The tail of the whole is the tail of the second part, which may reach into the first.
    EXPECT_EQ(Tail(tail, One(n().tokens - cut), passed).ToDoubles(),
              Tail(x_, One(n().tokens), {}).ToDoubles());
  }
}

TEST_P(ShortConvCut, StepsAreTheConvolution) {
  const Tensor want = Conv(x_, One(n().tokens), {});
  Tensor tail = Tensor::Zeros({1, n().width - 1, n().channels}, DType::kF64, device());
  Tensor y = Tensor::Empty({1, n().channels}, DType::kF64, device());
  for (int64_t t = 0; t < n().tokens; ++t) {
    ShortConvStep(stream_, {.x_BC = x_.Rows(t, t + 1),
                            .w_CW = w_->value,
                            .bias_C = bias_ ? bias_->value : Tensor(),
                            .silu = n().silu,
                            .tail_BPC = tail,
                            .y_BC = y});
    ASSERT_EQ(y.ToDoubles(), want.Rows(t, t + 1).ToDoubles()) << "token " << t;
  }
  EXPECT_EQ(tail.ToDoubles(), Tail(x_, One(n().tokens), {}).ToDoubles());
}

TEST_P(ShortConvCut, DocumentsAreSeparateRuns) {
  const std::vector<int32_t> cu = {0, 1, 3, static_cast<int32_t>(n().tokens)};
  const Documents documents = Documents::Of(cu, device());
  const Tensor together = Conv(x_, documents, {}), tails = Tail(x_, documents, {});
  for (int64_t d = 0; d < 3; ++d) {
    SCOPED_TRACE(absl::StrCat("document ", d));
    const Tensor rows = x_.Rows(cu[d], cu[d + 1]);
    const Documents alone = One(cu[d + 1] - cu[d]);
    EXPECT_EQ(together.Rows(cu[d], cu[d + 1]).ToDoubles(), Conv(rows, alone, {}).ToDoubles());
    EXPECT_EQ(tails.Rows(d, d + 1).ToDoubles(), Tail(rows, alone, {}).ToDoubles());
  }
}

// A tail is input like any other row: weights get its gradient.
TEST_P(ShortConvCut, WeightGradientSeesTheTail) {
  const int64_t cut = n().tokens / 2;
  const auto weight_grads = [&](const std::function<void(Tape&, std::vector<Tape::Seed>&)>& run,
                                int uses) {
    w_->ExpectUses(uses);
    if (bias_) bias_->ExpectUses(uses);
    Tape tape(stream_);
    std::vector<Tape::Seed> seeds;
    run(tape, seeds);
    tape.Backward(std::move(seeds));
    return w_->main_grad.ToDoubles();
  };
  const Tensor dy = Random("dy", {n().tokens, n().channels});
  const auto conv = [&](Tape& tape, int64_t begin, int64_t end, const Tensor& tail,
                        std::vector<Tape::Seed>& seeds) {
    const Var y = ShortConv(tape, tape.Input(x_.Rows(begin, end)), *w_, bias_.get(), n().silu,
                            One(end - begin), tail);
    seeds.push_back({y, dy.Rows(begin, end).Clone()});
  };
  const std::vector<double> want =
      weight_grads([&](Tape& tape, auto& seeds) { conv(tape, 0, n().tokens, {}, seeds); }, 1);
  const std::vector<double> got = weight_grads(
      [&](Tape& tape, auto& seeds) {
        conv(tape, 0, cut, {}, seeds);
        conv(tape, cut, n().tokens, Tail(x_.Rows(0, cut), One(cut), {}), seeds);
      },
      2);
  const Shape flat = {static_cast<int64_t>(want.size())};
  EXPECT_LE(RelativeError({.shape = flat, .values = got}, {.shape = flat, .values = want}), 1e-13);
}

INSTANTIATE_TEST_SUITE_P(, ShortConvCut,
                         testing::Combine(testing::Values(Backend::kReference, Backend::kCpu),
                                          testing::Values(Instance{70, 24, 4, true, true},
                                                          Instance{9, 5, 4, false, false},
                                                          Instance{12, 3, 6, false, true})));

}  // namespace
}  // namespace lt2
