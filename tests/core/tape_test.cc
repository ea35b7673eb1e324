#include "core/tape.h"

#include <gtest/gtest.h>

#include "core/allocator.h"
#include "core/philox.h"

namespace lt2 {
namespace {

constexpr int64_t kSize = 6;

// Three operators in double, written as kernels are: a product with a parameter (its weight
// gradient deferrable), a square, and a sum.
class TapeTest : public testing::Test {
 protected:
  Stream stream_{.device = {Backend::kCpu}};

  Tensor Random(uint64_t key) {
    std::vector<double> values;
    for (int64_t i = 0; i < kSize; ++i) values.push_back(OpenUniform(Philox(key, i)[0]) - 0.5);
    return Tensor::FromHost(values, {kSize}, DType::kF64, stream_.device);
  }

  std::unique_ptr<Param> MakeParam(const std::string& name, uint64_t key) {
    auto param = std::make_unique<Param>(ParamSpec{.name = name, .shape = {kSize}}, DType::kF64,
                                         stream_.device);
    param->BindGradient(Tensor::Zeros({kSize}, DType::kF64, stream_.device));
    param->value.CopyFrom(Random(key));
    return param;
  }

  static void Emit(GradSlot& slot, const std::function<double(int64_t)>& value) {
    if (!slot.wanted()) return;
    const bool add = slot.accumulate();
    double* to = slot.to().data<double>();
    for (int64_t i = 0; i < kSize; ++i) to[i] = value(i) + (add ? to[i] : 0.0);
  }

  Var Times(Tape& tape, const Var& x, Param& w) {
    Tensor y = Tensor::Empty({kSize}, DType::kF64, stream_.device);
    for (int64_t i = 0; i < kSize; ++i) {
      y.data<double>()[i] = x.value.data<double>()[i] * w.value.data<double>()[i];
    }
    ++products_;
    Node node{.name = "times", .params = {&w}};
    node.input_grad = [&w](std::span<const Tensor> dy, std::span<GradSlot> dx) {
      const double *d = dy[0].data<double>(), *v = w.value.data<double>();
      Emit(dx[0], [&](int64_t i) { return d[i] * v[i]; });
    };
    node.weight_grad = [&w, saved = tape.Save(x)](std::span<const Tensor> dy) {
      const Tensor x = saved.get();
      for (int64_t i = 0; i < kSize; ++i) {
        w.main_grad.data<double>()[i] += dy[0].data<double>()[i] * x.data<double>()[i];
      }
    };
    return tape.Record({x}, y, std::move(node));
  }

  Var Square(Tape& tape, const Var& x) {
    const Var y = tape.Make([this, x = tape.Save(x)] {
      const Tensor from = x.get(), to = Tensor::Empty({kSize}, DType::kF64, stream_.device);
      for (int64_t i = 0; i < kSize; ++i) {
        to.data<double>()[i] = from.data<double>()[i] * from.data<double>()[i];
      }
      ++squares_;
      return to;
    });
    Node node{.name = "square"};
    node.input_grad = [x = tape.Save(x)](std::span<const Tensor> dy, std::span<GradSlot> dx) {
      const Tensor value = x.get();
      const double *d = dy[0].data<double>(), *v = value.data<double>();
      Emit(dx[0], [&](int64_t i) { return 2 * d[i] * v[i]; });
    };
    return tape.Record({x}, y, std::move(node));
  }

  Var Sum(Tape& tape, const Var& a, const Var& b) {
    Tensor y = Tensor::Empty({kSize}, DType::kF64, stream_.device);
    for (int64_t i = 0; i < kSize; ++i) {
      y.data<double>()[i] = a.value.data<double>()[i] + b.value.data<double>()[i];
    }
    Node node{.name = "sum"};
    node.input_grad = [](std::span<const Tensor> dy, std::span<GradSlot> dx) {
      for (GradSlot& slot : dx) {
        if (slot.wanted() && !slot.accumulate()) {
          slot.Set(dy[0]);
        } else {
          Emit(slot, [&](int64_t i) { return dy[0].data<double>()[i]; });
        }
      }
    };
    return tape.Record({a, b}, y, std::move(node));
  }

  // A block that keeps one value: x + square(kept product).
  Var Block(Tape& tape, const Var& x, Param& w) {
    const Var y = Times(tape, x, w);
    const Tensor kept = tape.Kept([&] {
      ++kept_made_;
      return std::vector<Tensor>{y.value.Clone()};
    })[0];
    EXPECT_EQ(kept.ToDoubles(), y.value.ToDoubles());
    return Sum(tape, x, Square(tape, y));
  }

  enum class How { kPlain, kBlock, kNested, kDeferred };

  // T loops of the blocks; gradients of x and of every parameter, as one list.
  std::vector<double> Gradients(std::vector<std::unique_ptr<Param>>& params, int loops, How how) {
    for (auto& param : params) param->ExpectUses(loops);
    Tape tape(stream_);
    tape.set_rebuild(rebuild_);
    tape.set_defer_weights(how == How::kDeferred);
    const Var x = tape.Input(Random(99), true);
    Var h = x;
    const auto one_loop = [&](Tape& t, std::span<const Var> in) -> std::vector<Var> {
      Var y = in[0];
      for (auto& param : params) {
        const auto block = [&, p = param.get()](Tape& t2, std::span<const Var> b) {
          return std::vector<Var>{Block(t2, b[0], *p)};
        };
        y = how == How::kBlock || how == How::kNested ? t.Recompute(std::span(&y, 1), block)[0]
                                                      : block(t, std::span(&y, 1))[0];
      }
      return {y};
    };
    for (int t = 0; t < loops; ++t) {
      h = how == How::kNested ? tape.Recompute(std::span(&h, 1), one_loop)[0]
                              : one_loop(tape, std::span(&h, 1))[0];
    }
    std::vector<double> all = tape.Backward({{h, Random(7)}}, std::span(&x, 1))[0].ToDoubles();
    for (auto& job : tape.TakeDeferred()) job();
    for (auto& param : params) {
      EXPECT_EQ(param->outstanding(), 0) << param->spec.name;
      const std::vector<double> grad = param->main_grad.ToDoubles();
      all.insert(all.end(), grad.begin(), grad.end());
    }
    return all;
  }

  std::vector<std::unique_ptr<Param>> ThreeParams() {
    std::vector<std::unique_ptr<Param>> params;
    for (uint64_t i = 0; i < 3; ++i) params.push_back(MakeParam("w" + std::to_string(i), i));
    return params;
  }

  int products_ = 0, squares_ = 0, kept_made_ = 0;
  Rebuild rebuild_ = Rebuild::kNothing;  // of the tape in Gradients
};

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

TEST_F(TapeTest, RebuiltValuesHaveTheSameBits) {
  auto params = ThreeParams();
  const std::vector<double> plain = Gradients(params, 4, How::kPlain);
  rebuild_ = Rebuild::kCheap;
  for (How how : {How::kPlain, How::kBlock, How::kNested, How::kDeferred}) {
    EXPECT_EQ(Gradients(params, 4, how), plain);
  }
}

// Two products read one square of a square: each square is made once more, when it is first asked
// for, though the inner one is nobody's input in backward but the outer one's.
TEST_F(TapeTest, RebuiltOnceForAllReaders) {
  for (bool deferred : {false, true}) {
    auto w0 = MakeParam("w0", 0), w1 = MakeParam("w1", 1);
    Tape tape(stream_);
    tape.set_rebuild(Rebuild::kCheap);
    tape.set_defer_weights(deferred);
    for (Param* param : {w0.get(), w1.get()}) param->ExpectUses(1);
    Var y;
    {
      const Var x = tape.Input(Random(1));  // no gradient: squares are not on the record
      const Var square = Square(tape, Square(tape, x));
      squares_ = 0;
      y = Sum(tape, Times(tape, square, *w0), Times(tape, square, *w1));
      EXPECT_EQ(squares_, 0) << "forward has the value at hand";
    }
    const Tensor dy = Random(2);
    tape.Backward({{y, dy}});
    for (auto& job : tape.TakeDeferred()) job();
    EXPECT_EQ(squares_, 2);
    for (Param* param : {w0.get(), w1.get()}) {
      for (int64_t i = 0; i < kSize; ++i) {
        const double x = Random(1).ToDoubles()[i];
        EXPECT_EQ(param->main_grad.ToDoubles()[i], dy.ToDoubles()[i] * ((x * x) * (x * x)));
      }
    }
  }
}

// Both halves of what one kernel makes are asked for, in either order, and made in one go.
TEST_F(TapeTest, ValuesMadeTogetherAreMadeAgainTogether) {
  for (bool first : {false, true}) {
    int made = 0;
    Tape tape(stream_);
    tape.set_rebuild(Rebuild::kCheap);
    auto w = MakeParam("w", 0);
    w->ExpectUses(1);
    Var loss;
    {
      const std::vector<Var> both = tape.MakeAll([this, &made] {
        ++made;
        return std::vector<Tensor>{Random(11), Random(12)};
      });
      Node node{.name = "reader", .params = {w.get()}};
      node.input_grad = [this, first, a = tape.Save(both[0]), b = tape.Save(both[1])](
                            std::span<const Tensor>, std::span<GradSlot>) {
        if (first) EXPECT_EQ(a.get().ToDoubles(), Random(11).ToDoubles());
        EXPECT_EQ(b.get().ToDoubles(), Random(12).ToDoubles());
        EXPECT_EQ(a.get().ToDoubles(), Random(11).ToDoubles());
      };
      loss = tape.Record(both, std::vector<Tensor>{Random(1)}, std::move(node))[0];
    }
    tape.Backward({{loss, Random(2)}});
    EXPECT_EQ(made, 2);
  }
}

// A node that reads x and a copy of a copy of it: what is held between forward and backward, while
// the node runs, and after it.
TEST_F(TapeTest, RebuildableValuesDieWithTheForward) {
  for (bool rebuild : {false, true}) {
    const MetaMeter meter;
    Stream stream{.device = {Backend::kMeta}};
    const Shape shape = {1 << 20};
    const int64_t bytes = 8 * shape.size();
    const auto empty = [&] { return Tensor::Empty(shape, DType::kF64, stream.device); };
    Param w({.name = "w", .shape = {1}}, DType::kF64, stream.device);
    w.BindGradient(w.value);
    w.ExpectUses(1);
    const Tensor seed = Tensor::Empty({1}, DType::kF64, stream.device);
    const int64_t before = meter.memory().live;
    const auto held = [&] { return (meter.memory().live - before) / bytes; };
    Tape tape(stream);
    tape.set_rebuild(rebuild ? Rebuild::kCheap : Rebuild::kNothing);
    Var loss;
    {
      const auto copy = [&](const Var& x) {
        return tape.Make([empty, x = tape.Save(x)] { return x.get(), empty(); });
      };
      const Var x = tape.Input(empty());
      const Var y = copy(copy(x));
      Node node{.name = "reader", .params = {&w}};
      node.input_grad = [&held, x = tape.Save(x), y = tape.Save(y)](std::span<const Tensor>,
                                                                    std::span<GradSlot>) {
        const Tensor again = y.get();
        EXPECT_EQ(held(), 2) << "what stands between them is not held";
      };
      loss = tape.Record({x, y}, seed, std::move(node));
      EXPECT_EQ(held(), 2);
    }
    EXPECT_EQ(held(), rebuild ? 1 : 2);
    tape.Backward({{loss, seed}});
    EXPECT_EQ(held(), 0);
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
