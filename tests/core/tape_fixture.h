// Three operators in double on a tape of the CPU, and a model made of them.
#pragma once

#include <gtest/gtest.h>

#include "core/philox.h"
#include "core/tape.h"

namespace lt2 {

inline constexpr int64_t kSize = 6;

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
    if (both_) {
      node.both_grad = [this, input = node.input_grad, weight = node.weight_grad](
                           std::span<const Tensor> dy, std::span<GradSlot> dx) {
        ++both_made_;
        input(dy, dx);
        weight(dy);
      };
    }
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
  bool both_ = false;                    // products have a both_grad, which has run so often:
  int both_made_ = 0;
};

}  // namespace lt2
