#include "core/tape.h"

#include <gtest/gtest.h>

#include "tests/core/tape_fixture.h"

namespace lt2 {
namespace {

TEST_F(TapeTest, SameVarTwiceOnOneNodeGetsBothGradients) {
  Tape tape(stream_);
  const Var x = tape.Input(Random(1), true);
  const Var y = Sum(tape, x, x);
  const Tensor dy = Random(2);
  const std::vector<double> dx = tape.Backward({{y, dy}}, std::span(&x, 1))[0].ToDoubles();
  for (int64_t i = 0; i < kSize; ++i) EXPECT_EQ(dx[i], 2 * dy.ToDoubles()[i]);
}

TEST_F(TapeTest, SharedGradientsAreNotOverwritten) {
  // sum hands the same dy to both inputs; square then adds to one of them.
  Tape tape(stream_);
  const Var x = tape.Input(Random(1), true);
  const Var z = tape.Input(Random(3), true);
  const Var y = Sum(tape, Sum(tape, x, z), Square(tape, x));
  const std::vector<Var> wrt = {x, z};
  const Tensor dy = Random(2);
  const std::vector<double> want = dy.ToDoubles();
  const std::vector<Tensor> grads = tape.Backward({{y, dy}}, wrt);
  EXPECT_EQ(grads[1].ToDoubles(), want);
  for (int64_t i = 0; i < kSize; ++i) {
    EXPECT_DOUBLE_EQ(grads[0].ToDoubles()[i], want[i] * (1 + 2 * Random(1).ToDoubles()[i]));
  }
  EXPECT_EQ(dy.ToDoubles(), want);
}

TEST_F(TapeTest, GradientsMatchCentralDifferences) {
  auto params = ThreeParams();
  const std::vector<double> got = Gradients(params, 2, How::kPlain);
  const auto value = [&] {
    Tape tape(stream_);
    tape.set_recording(false);
    Var h = tape.Input(Random(99));
    for (int t = 0; t < 2; ++t) {
      for (auto& param : params) h = Block(tape, h, *param);
    }
    double sum = 0;
    for (int64_t i = 0; i < kSize; ++i) sum += h.value.ToDoubles()[i] * Random(7).ToDoubles()[i];
    return sum;
  };
  for (size_t p = 0; p < params.size(); ++p) {
    for (int64_t i = 0; i < kSize; ++i) {
      double& w = params[p]->value.data<double>()[i];
      const double at = w, step = 1e-6;
      w = at + step;
      const double up = value();
      w = at - step;
      const double down = value();
      w = at;
      EXPECT_NEAR(got[kSize * (p + 1) + i], (up - down) / (2 * step), 1e-8);
    }
  }
}

TEST_F(TapeTest, RecomputeAndDeferralGiveTheSameBits) {
  auto params = ThreeParams();
  const std::vector<double> plain = Gradients(params, 4, How::kPlain);
  EXPECT_EQ(Gradients(params, 4, How::kBlock), plain);
  EXPECT_EQ(Gradients(params, 4, How::kNested), plain);
  EXPECT_EQ(Gradients(params, 4, How::kDeferred), plain);
}

TEST_F(TapeTest, BothGradientsAtOnceAreTheSameAndNeverDeferred) {
  auto params = ThreeParams();
  const std::vector<double> plain = Gradients(params, 4, How::kPlain);
  both_ = true;
  for (auto& param : params) {
    param->main_grad = {};
    param->on_need = [&](Param& p) {
      if (p.main_grad.defined()) return;
      p.BindGradient(Tensor::Zeros({kSize}, DType::kF64, stream_.device));
    };
  }
  for (How how : {How::kPlain, How::kBlock, How::kDeferred}) {
    for (auto& param : params) param->main_grad = {};
    both_made_ = 0;
    EXPECT_EQ(Gradients(params, 4, how), plain);
    EXPECT_EQ(both_made_, how == How::kDeferred ? 0 : 12);
  }
}

TEST_F(TapeTest, KeptValuesAreMadeOnce) {
  auto params = ThreeParams();
  for (How how : {How::kPlain, How::kBlock, How::kNested}) {
    kept_made_ = products_ = 0;
    Gradients(params, 4, how);
    EXPECT_EQ(kept_made_, 12);
    EXPECT_EQ(products_, how == How::kPlain ? 12 : how == How::kBlock ? 24 : 36);
  }
}

TEST_F(TapeTest, NothingIsRecordedWithoutRecording) {
  auto param = MakeParam("w", 0);
  Tape tape(stream_);
  tape.set_recording(false);
  EXPECT_FALSE(Times(tape, tape.Input(Random(1)), *param).needs_grad());
}

TEST_F(TapeTest, RecomputeOfParametersAloneIsDifferentiated) {
  // No input needs a gradient, but a parameter inside the segment does.
  auto param = MakeParam("w", 0);
  param->ExpectUses(1);
  Tape tape(stream_);
  const Var x = tape.Input(Random(1));
  const Var y = tape.Recompute(std::span(&x, 1), [&](Tape& t, std::span<const Var> in) {
    return std::vector<Var>{Times(t, in[0], *param)};
  })[0];
  tape.Backward({{y, Random(2)}});
  EXPECT_EQ(param->outstanding(), 0);
  EXPECT_NE(param->main_grad.ToDoubles()[0], 0);
}

TEST_F(TapeTest, OnReadyFiresOnceAfterTheLastUse) {
  auto params = ThreeParams();
  std::vector<std::string> fired;
  for (auto& param : params) {
    param->on_ready = [&](Param& p) { fired.push_back(p.spec.name); };
  }
  Gradients(params, 3, How::kPlain);
  EXPECT_EQ(fired, (std::vector<std::string>{"w2", "w1", "w0"}));
}

TEST_F(TapeTest, OnReadyFiresAfterEveryRound) {
  auto param = MakeParam("w", 0);
  std::vector<int> fired;
  param->on_ready = [&](Param& p) { fired.push_back(p.outstanding()); };
  param->ExpectUses(2, /*rounds=*/3);
  for (int use = 0; use < 6; ++use) {
    EXPECT_EQ(param->rounds_done(), use / 2);
    param->Arrive();
  }
  EXPECT_EQ(fired, (std::vector<int>{4, 2, 0}));
}

TEST_F(TapeTest, GradientsAreNeededBeforeTheyAreWritten) {
  auto params = ThreeParams();
  const std::vector<double> want = Gradients(params, 3, How::kPlain);
  for (How how : {How::kPlain, How::kBlock, How::kNested, How::kDeferred}) {
    for (auto& param : params) {
      param->main_grad = {};
      param->on_need = [&](Param& p) {
        if (p.main_grad.defined()) return;
        p.BindGradient(Tensor::Zeros({kSize}, DType::kF64, stream_.device));
      };
    }
    EXPECT_EQ(Gradients(params, 3, how), want);
  }
}

// Two products read a value that comes from elsewhere and whose gradient goes there; a third reads
// what one of them made.
TEST_F(TapeTest, WeightGradientsAreHeldBackForAGradientThatTravels) {
  std::vector<std::string> log;
  const auto gradients = [&](bool travels, bool deferred) {
    log.clear();
    auto params = ThreeParams();
    for (auto& param : params) {
      param->ExpectUses(1);
      param->on_ready = [&](Param& p) { log.push_back(p.spec.name); };
    }
    Tape tape(stream_);
    tape.set_rebuild(Rebuild::kCheap);
    tape.set_defer_weights(deferred);
    const auto launch = [&]() -> Rebuildable::Make {
      log.push_back("value launched");
      return [&] { return log.push_back("value there"), Random(1); };
    };
    const auto launch_grad = [&](std::span<const Tensor> dy) -> FinishGrad {
      log.push_back("gradient launched");
      return [&log, dy = dy[0]](std::span<GradSlot> dx) {
        log.push_back("gradient there");
        dx[0].Set(dy);
      };
    };
    const Var x = tape.Input(Random(1), true);
    Var y;
    {
      const Var here = travels ? tape.Record({x}, tape.Made(Random(1), launch),
                                             {.name = "enter", .launch_grad = launch_grad})
                               : x;
      const Var a = Times(tape, here, *params[0]), b = Times(tape, here, *params[1]);
      y = Sum(tape, b, Times(tape, a, *params[2]));
    }
    std::vector<double> all = tape.Backward({{y, Random(7)}}, std::span(&x, 1))[0].ToDoubles();
    for (auto& job : tape.TakeDeferred()) job();
    for (auto& param : params) {
      const std::vector<double> grad = param->main_grad.ToDoubles();
      all.insert(all.end(), grad.begin(), grad.end());
    }
    return all;
  };
  using Log = std::vector<std::string>;
  const std::vector<double> want = gradients(false, false);
  EXPECT_EQ(log, (Log{"w2", "w1", "w0"}));
  for (const bool both : {false, true}) {  // of w2, which is not held back
    both_ = both;
    EXPECT_EQ(gradients(true, false), want);
    EXPECT_EQ(log, (Log{"w2", "value launched", "gradient launched", "value there", "w1", "w0",
                        "gradient there"}));
    EXPECT_EQ(both_made_, both ? 1 : 0);
  }
  EXPECT_EQ(gradients(true, true), want);
  EXPECT_EQ(log, (Log{"gradient launched", "gradient there", "w2", "value launched", "value there",
                      "w1", "w0"}));
}

TEST_F(TapeTest, OneUseTooManyDies) {
  auto params = ThreeParams();
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        for (auto& param : params) param->ExpectUses(1);
        Tape tape(stream_);
        const Var x = tape.Input(Random(1), true);
        const Var y = Times(tape, Times(tape, x, *params[1]), *params[1]);
        tape.Backward({{y, Random(2)}});
      },
      "w1 was used more often");
}

TEST_F(TapeTest, ReshapeKeepsThePlaceInTheRecord) {
  Tape tape(stream_);
  const Var x = tape.Input(Random(1), true);
  const Var y = Square(tape, Reshape(Square(tape, Reshape(x, {kSize})), {kSize}));
  const Tensor dx = tape.Backward({{Reshape(y, {2, kSize / 2}), Random(2)}}, std::span(&x, 1))[0];
  EXPECT_EQ(dx.shape(), Shape({kSize}));
  for (int64_t i = 0; i < kSize; ++i) {
    const double v = Random(1).ToDoubles()[i];
    EXPECT_NEAR(dx.ToDoubles()[i], 4 * v * v * v * Random(2).ToDoubles()[i], 1e-15);
  }
}

// An operator that takes the memory of both its gradients before it writes either, as kernels do.
TEST_F(TapeTest, OneValueMayBeTwoInputs) {
  for (bool elsewhere : {false, true}) {  // whether a gradient is there already
    Tape tape(stream_);
    const Tensor value = Random(3), dy = Random(4);
    const Var x = tape.Input(value, true);
    Node node{.name = "product"};
    node.input_grad = [&](std::span<const Tensor> d, std::span<GradSlot> dx) {
      const bool add_a = dx[0].accumulate();
      const Tensor a = dx[0].to();
      const bool add_b = dx[1].accumulate();
      const Tensor b = dx[1].to();
      for (int64_t i = 0; i < kSize; ++i) {
        const double share = d[0].data<double>()[i] * value.data<double>()[i];
        a.data<double>()[i] = share + (add_a ? a.data<double>()[i] : 0);
        b.data<double>()[i] = share + (add_b ? b.data<double>()[i] : 0);
      }
    };
    Tensor y = Tensor::Empty({kSize}, DType::kF64, stream_.device);
    const Var product = tape.Record({x, x}, y, std::move(node));
    std::vector<Tape::Seed> seeds = {{product, dy}};
    if (elsewhere) seeds.push_back({Sum(tape, x, tape.Input(Random(5))), dy});
    const std::vector<double> got =
        tape.Backward(std::move(seeds), std::span(&x, 1))[0].ToDoubles();
    for (int64_t i = 0; i < kSize; ++i) {
      const double want = dy.data<double>()[i] * (2 * value.data<double>()[i] + elsewhere);
      EXPECT_DOUBLE_EQ(got[i], want) << i << " " << elsewhere;
    }
  }
}

}  // namespace
}  // namespace lt2
