// What a tape makes again in backward instead of keeping it.
#include <gtest/gtest.h>

#include "core/allocator.h"
#include "tests/core/tape_fixture.h"

namespace lt2 {
namespace {

class RebuildTest : public TapeTest {};

TEST_F(RebuildTest, RebuiltValuesHaveTheSameBits) {
  auto params = ThreeParams();
  const std::vector<double> plain = Gradients(params, 4, How::kPlain);
  rebuild_ = Rebuild::kCheap;
  for (How how : {How::kPlain, How::kBlock, How::kNested, How::kDeferred}) {
    EXPECT_EQ(Gradients(params, 4, how), plain);
  }
}

// Two products read one square of a square: each square is made once more, when it is first asked
// for, though the inner one is nobody's input in backward but the outer one's.
TEST_F(RebuildTest, RebuiltOnceForAllReaders) {
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
TEST_F(RebuildTest, ValuesMadeTogetherAreMadeAgainTogether) {
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
TEST_F(RebuildTest, RebuildableValuesDieWithTheForward) {
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

}  // namespace
}  // namespace lt2
