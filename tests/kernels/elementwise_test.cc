#include "kernels/elementwise.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>

#include "kernels/add.h"
#include "kernels/add_rms_norm.h"
#include "kernels/case.h"
#include "kernels/checksum.h"
#include "kernels/probe.h"
#include "kernels/squared_norm.h"

namespace lt2 {
namespace {

class Elementwise : public testing::TestWithParam<std::pair<Backend, DType>> {
 protected:
  Tensor Random(const std::string& name, const Shape& shape) const {
    return Tensor::FromHost(RandomNormal(3, name, shape).values, shape, dtype_, stream_.device);
  }
  const DType dtype_ = GetParam().second;
  Stream stream_{.device = {GetParam().first}};
};

TEST_P(Elementwise, AccumulateFillScale) {
  const Tensor to = Random("to", {33, 1001}), from = Random("from", {33, 1001});
  const std::vector<double> before = to.ToDoubles(), added = from.ToDoubles();
  AccumulateInto(stream_, to, from);
  Scale(stream_, to, 0.5);
  const std::vector<double> after = to.ToDoubles();
  for (size_t i = 0; i < after.size(); ++i) {
    ASSERT_NEAR(after[i], 0.5 * (before[i] + added[i]), 1e-6) << i;
  }
  Fill(stream_, to, 0.25);
  EXPECT_EQ(to.ToDoubles(), std::vector<double>(after.size(), 0.25));
}

TEST_P(Elementwise, ChecksumSeesAnyBitAndTheOrder) {
  const Tensor x = Random("x", {100'003});
  const auto sum_of = [&](const Tensor& y) {
    const Tensor sums = Tensor::Zeros({2, 2}, DType::kI32, stream_.device);
    const Tensor both[] = {y, y.Flat(0, 3)};
    Checksums(stream_, {.x = both, .sums = sums});
    return sums.ToDoubles();
  };
  const std::vector<double> sum = sum_of(x);
  EXPECT_EQ(sum_of(x.Clone()), sum);
  Stream host{.device = {Backend::kReference}};
  const Tensor want = Tensor::Zeros({1, 2}, DType::kI32, host.device);
  Checksums(host, {.x = {&x, 1}, .sums = want});
  EXPECT_EQ(std::vector<double>(sum.begin(), sum.begin() + 2), want.ToDoubles());
  if (x.on_gpu()) return;
  auto* const bytes = static_cast<uint8_t*>(x.raw());
  for (const int64_t at : {int64_t{0}, x.bytes() / 2, x.bytes() - 1}) {
    bytes[at] ^= 1;
    EXPECT_NE(sum_of(x), sum) << "byte " << at;
    bytes[at] ^= 1;
  }
  std::swap(bytes[400], bytes[404]);
  EXPECT_NE(sum_of(x), sum);
}

TEST_P(Elementwise, SquaredNormInDouble) {
  const Tensor x = Random("x", {100'003});
  double want = 0;
  for (double value : x.ToDoubles()) want += value * value;
  const Tensor sum = Tensor::Empty({1}, DType::kF64, stream_.device);
  SquaredNorm(stream_, {.x = x, .sum = sum});
  EXPECT_NEAR(*sum.data<double>(), want, 1e-13 * want);
  SquaredNorm(stream_, {.x = Tensor::Empty({0}, dtype_, stream_.device), .sum = sum});
  EXPECT_EQ(*sum.data<double>(), 0);
  Fill(stream_, x.Rows(77'777, 77'778), NAN);
  SquaredNorm(stream_, {.x = x, .sum = sum});
  EXPECT_TRUE(std::isnan(*sum.data<double>()));
}

TEST_P(Elementwise, AddHandsItsGradientOnWithoutACopy) {
  Tape tape(stream_);
  const Var a = tape.Input(Random("a", {4, 5}), true), b = tape.Input(Random("b", {4, 5}), true);
  const Var y = Add(tape, a, b);
  const Tensor dy = Random("dy", {4, 5});
  const Var wrt[] = {a, b};
  const std::vector<Tensor> grads = tape.Backward({{y, dy}}, wrt);
  EXPECT_TRUE(grads[0].SharesStorageWith(dy));
  EXPECT_TRUE(grads[1].SharesStorageWith(dy));
}

// x + x, and then the sum's own gradient is added to: neither may touch the seed.
TEST_P(Elementwise, SharedGradientsAreNotWrittenTo) {
  Tape tape(stream_);
  const Var x = tape.Input(Random("x", {4, 5}), true);
  const Var twice = Add(tape, x, x), thrice = Add(tape, twice, x);
  const Tensor dy = Random("dy", {4, 5});
  const std::vector<double> before = dy.ToDoubles();
  const Var wrt[] = {x};
  const std::vector<double> dx = tape.Backward({{thrice, dy}}, wrt)[0].ToDoubles();
  EXPECT_EQ(dy.ToDoubles(), before);
  for (size_t i = 0; i < dx.size(); ++i) EXPECT_NEAR(dx[i], 3 * before[i], 1e-5);
}

TEST_P(Elementwise, ProbeShowsTheGradientAndPassesIt) {
  Tape tape(stream_);
  const Var x = tape.Input(Random("x", {4, 5}), true);
  std::vector<double> seen;
  const Var y = Probe(tape, x, [&](const Tensor& dy) { seen = dy.ToDoubles(); });
  EXPECT_TRUE(y.value.SharesStorageWith(x.value));
  const Tensor dy = Random("dy", {4, 5});
  const Var wrt[] = {x};
  EXPECT_EQ(tape.Backward({{y, dy}}, wrt)[0].ToDoubles(), dy.ToDoubles());
  EXPECT_EQ(seen, dy.ToDoubles());
}

// Only one of the two outputs is used: the other's gradient is undefined.
TEST_P(Elementwise, AddRmsNormWithOneOutputUnused) {
  for (bool use_sum : {true, false}) {
    Tape tape(stream_);
    Param w({.name = "w", .shape = {5}}, dtype_, stream_.device);
    Fill(stream_, w.value, 1);
    w.BindGradient(Tensor::Zeros({5}, dtype_, stream_.device));
    w.ExpectUses(1);
    const Var x = tape.Input(Random("x", {4, 5}), true), r = tape.Input(Random("r", {4, 5}), true);
    const auto [sum, normed] = AddRmsNorm(tape, x, r, w, 1e-6);
    const Tensor dy = Random("dy", {4, 5});
    const Var wrt[] = {x, r};
    const std::vector<Tensor> grads = tape.Backward({{use_sum ? sum : normed, dy}}, wrt);
    EXPECT_EQ(grads[0].ToDoubles(), grads[1].ToDoubles());
    EXPECT_EQ(w.outstanding(), 0);
    if (use_sum) {
      EXPECT_EQ(grads[0].ToDoubles(), dy.ToDoubles());
      EXPECT_EQ(w.main_grad.ToDoubles(), std::vector<double>(5, 0.0));
    } else {
      // A norm's gradient has no component along its input (but for eps).
      const std::vector<double> dx = grads[0].ToDoubles(), s = sum.value.ToDoubles();
      for (int n = 0; n < 4; ++n) {
        double along = 0;
        for (int i = 0; i < 5; ++i) along += dx[n * 5 + i] * s[n * 5 + i];
        EXPECT_NEAR(along, 0, 1e-5);
      }
      EXPECT_NE(w.main_grad.ToDoubles(), std::vector<double>(5, 0.0));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, Elementwise,
                         testing::Values(std::pair{Backend::kReference, DType::kF64},
                                         std::pair{Backend::kCpu, DType::kF64},
                                         std::pair{Backend::kCpu, DType::kF32}),
                         [](const auto& info) {
                           return std::string(Name(info.param.first)) + "_" +
                                  Name(info.param.second);
                         });

}  // namespace
}  // namespace lt2
