// AdamW beyond its case: device-resident scalars, skipping, pieces, decay.
#include "kernels/adamw.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/case.h"

namespace lt2 {
namespace {

constexpr uint64_t kSeed = 3;
constexpr Device kCpuDevice{Backend::kCpu};

struct State {
  Tensor param, grad, m, v;
  State Piece(int64_t begin, int64_t size) const {
    return {param.Flat(begin, size), grad.Flat(begin, size), m.Flat(begin, size),
            v.Flat(begin, size)};
  }
};

State RandomState(int64_t size, DType dtype) {
  const auto random = [&](const char* name, double scale) {
    return Tensor::FromHost(RandomNormal(kSeed, name, {size}, scale).values, {size}, dtype,
                            kCpuDevice);
  };
  State state{random("param", 1), random("grad", 1e-2), random("m", 1e-2), random("v", 1e-3)};
  DispatchFloat(dtype, [&]<class T>() {
    for (T& v : state.v.span<T>()) v = std::abs(v);
  });
  return state;
}

void Step(const State& state, double lr, double grad_scale, double step, double skip,
          bool decay = true) {
  Stream stream{kCpuDevice};
  const std::vector<double> hyper = {lr, grad_scale, step, skip};
  const AdamWPiece piece{.param = state.param,
                         .grad = state.grad,
                         .m = state.m,
                         .v = state.v,
                         .value = {},
                         .decay = decay};
  AdamW(stream, {.pieces = {&piece, 1},
                 .hyper = Tensor::FromHost(hyper, {kAdamWHypers}, DType::kF64, kCpuDevice),
                 .weight_decay = 0.1});
}

void ExpectSame(const State& a, const State& b) {
  EXPECT_EQ(a.param.ToDoubles(), b.param.ToDoubles());
  EXPECT_EQ(a.m.ToDoubles(), b.m.ToDoubles());
  EXPECT_EQ(a.v.ToDoubles(), b.v.ToDoubles());
}

// A parameter cut anywhere (a ZeRO shard, a box) is updated to the same bits.
TEST(AdamW, PiecesHaveTheSameBits) {
  constexpr int64_t kSize = 5003;
  for (DType dtype : {DType::kF32, DType::kF64}) {
    const State whole = RandomState(kSize, dtype), pieces = RandomState(kSize, dtype);
    Step(whole, 1e-2, 0.7, 5, 0);
    int64_t begin = 0;
    for (int64_t size : {1, 2, 15, 16, 17, 100, 2049, 2803}) {
      Step(pieces.Piece(begin, size), 1e-2, 0.7, 5, 0);
      begin += size;
    }
    ASSERT_EQ(begin, kSize);
    ExpectSame(whole, pieces);
  }
}

// A skipped step leaves everything alone, even where the gradient is not finite.
TEST(AdamW, SkipChangesNothing) {
  const State state = RandomState(100, DType::kF32), before = RandomState(100, DType::kF32);
  state.grad.data<float>()[50] = NAN;
  Step(state, 1e-2, NAN, 3, 1);
  ExpectSame(state, before);
}

// The first step moves every weight by lr, whatever the gradient's size, plus the decay.
TEST(AdamW, FirstStepIsSignTimesLearningRate) {
  for (bool decay : {true, false}) {
    State state = RandomState(1000, DType::kF64);
    state.m.Zero(), state.v.Zero();
    const std::vector<double> before = state.param.ToDoubles(), grad = state.grad.ToDoubles();
    Step(state, 1e-2, 1e3, 1, 0, decay);
    const std::vector<double> after = state.param.ToDoubles();
    for (size_t i = 0; i < after.size(); ++i) {
      const double kept = before[i] * (decay ? 1 - 1e-2 * 0.1 : 1);
      EXPECT_NEAR(after[i], kept - std::copysign(1e-2, grad[i]), 1e-8);
    }
  }
}

// grad_scale is as good as a scaled gradient (a power of two, so exactly).
TEST(AdamW, GradScale) {
  const State a = RandomState(333, DType::kF32), b = RandomState(333, DType::kF32);
  for (float& g : b.grad.span<float>()) g *= 0.25f;
  Step(a, 1e-2, 0.25, 2, 0);
  Step(b, 1e-2, 1, 2, 0);
  ExpectSame(a, b);
}

// Many pieces in one call are each of them alone, and their values are what they round to.
TEST(AdamW, PiecesOfOneCallAndTheirRoundedValues) {
  constexpr int64_t kSize = 3000;
  const State together = RandomState(kSize, DType::kF32), alone = RandomState(kSize, DType::kF32);
  const Tensor value = Tensor::Zeros({kSize}, DType::kBF16, kCpuDevice);
  std::vector<AdamWPiece> pieces;
  int64_t begin = 0;
  for (int64_t size : {7, 1000, 1, 1992}) {
    const State piece = together.Piece(begin, size);
    const bool decay = pieces.size() % 2 == 0;
    pieces.push_back({.param = piece.param,
                      .grad = piece.grad,
                      .m = piece.m,
                      .v = piece.v,
                      .value = decay ? value.Flat(begin, size) : Tensor(),
                      .decay = decay});
    Step(alone.Piece(begin, size), 1e-2, 0.7, 4, 0, decay);
    begin += size;
  }
  ASSERT_EQ(begin, kSize);
  Stream stream{kCpuDevice};
  const std::vector<double> hyper = {1e-2, 0.7, 4, 0};
  AdamW(stream, {.pieces = pieces,
                 .hyper = Tensor::FromHost(hyper, {kAdamWHypers}, DType::kF64, kCpuDevice),
                 .weight_decay = 0.1});
  ExpectSame(together, alone);
  begin = 0;
  for (const AdamWPiece& piece : pieces) {
    for (int64_t i = 0; i < piece.param.size(); ++i) {
      const float written = value.data<BFloat16>()[begin + i];
      const float rounded = BFloat16::Of(piece.param.data<float>()[i]);
      ASSERT_EQ(written, piece.value.defined() ? rounded : 0) << begin + i;
    }
    begin += piece.param.size();
  }
}

}  // namespace
}  // namespace lt2
