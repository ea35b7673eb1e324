#include "kernels/swiglu_ffn.h"

#include <array>

#include "kernels/elementwise.h"
#include "kernels/gated_product.h"
#include "kernels/gemm.h"

namespace lt2 {
namespace {

constexpr double kGateFlops = 5, kGateGradientFlops = 10;  // an element, as gated_product counts

Shape WithLast(const Tensor& x, int64_t size) {
  Shape shape = x.shape();
  shape[shape.rank() - 1] = size;
  return shape;
}

Tensor Like(const Tensor& x, const Shape& shape) {
  return Tensor::Empty(shape, x.dtype(), x.device());
}

}  // namespace

Cost CostOf(const SwiGluFfnForwardArgs& args) {
  const double outputs = args.hidden.defined() ? 3 : 2, size = args.gate.size();
  return {.flops = (4.0 * args.x.shape().back() + (outputs > 2 ? kGateFlops : 0)) * size,
          .bytes = args.x.bytes() + args.w_gate.bytes() + args.w_up.bytes() +
                   outputs * args.gate.bytes()};
}

Cost CostOf(const SwiGluFfnBackwardArgs& args) {
  const double moved = args.hidden.defined() ? 5 : 4, size = args.gate.size();
  const double gate = kGateGradientFlops + (moved > 4 ? kGateFlops : 0);
  return {.flops = (2.0 * args.dy.shape().back() + gate) * size,
          .bytes = args.dy.bytes() + args.w_down.bytes() + moved * args.gate.bytes()};
}

void SwiGluFfnForwardInParts(Stream& stream, const SwiGluFfnForwardArgs& a) {
  Gemm(stream, {.a = a.x, .b = a.w_gate, .c = a.gate, .transpose_b = true});
  Gemm(stream, {.a = a.x, .b = a.w_up, .c = a.up, .transpose_b = true});
  if (a.hidden.defined()) GatedProductForward(stream, {.x = a.up, .gate = a.gate, .y = a.hidden});
}

void SwiGluFfnBackwardInParts(Stream& stream, const SwiGluFfnBackwardArgs& a) {
  Gemm(stream, {.a = a.dy, .b = a.w_down, .c = a.dup});  // dhidden, until dup takes its place
  GatedProductBackward(stream,
                       {.dy = a.dup, .x = a.up, .gate = a.gate, .dx = a.dup, .dgate = a.dgate});
  if (a.hidden.defined()) GatedProductForward(stream, {.x = a.up, .gate = a.gate, .y = a.hidden});
}

namespace {

// gate, up and, where it is wanted, hidden.
using Outputs = std::array<Tensor, 3>;
using Range = std::pair<int64_t, int64_t>;  // of rows

Outputs EmptyOutputs(const Tensor& like, const Shape& shape, bool with_hidden) {
  return {Like(like, shape), Like(like, shape), with_hidden ? Like(like, shape) : Tensor()};
}

// The outputs' rows [begin, end), of the same rows of x.
void MakeRows(Stream& stream, const Tensor& x, const Param& w_gate, const Param& w_up,
              const Outputs& outputs, const Range& range) {
  const auto rows = [&](const Tensor& output) {
    return output.defined() ? output.Rows(range.first, range.second) : output;
  };
  SwiGluFfnForward(stream, {.x = x,
                            .w_gate = w_gate.value,
                            .w_up = w_up.value,
                            .gate = rows(outputs[0]),
                            .up = rows(outputs[1]),
                            .hidden = rows(outputs[2])});
}

// gate and up, made again together when the first of them is asked for, by the products that made
// them first.
class GateAndUp {
 public:
  GateAndUp(Stream& stream, Saved x, const Param& w_gate, const Param& w_up,
            std::vector<Range> ranges)
      : stream_(stream),
        x_(std::move(x)),
        w_gate_(w_gate),
        w_up_(w_up),
        ranges_(std::move(ranges)) {}

  Tensor Again(int which) {
    if (!waiting_[which].defined()) Make();
    return std::exchange(waiting_[which], {});
  }

 private:
  void Make() {
    const Tensor x = x_.get();
    waiting_ = EmptyOutputs(x, WithLast(x, w_gate_.value.dim(0)), /*with_hidden=*/false);
    for (const Range& range : ranges_) {
      MakeRows(stream_, x.Rows(range.first, range.second), w_gate_, w_up_, waiting_, range);
    }
  }

  Stream& stream_;
  const Saved x_;
  const Param &w_gate_, &w_up_;
  const std::vector<Range> ranges_;
  Outputs waiting_;  // made again and not asked for yet
};

void WeightGradient(Stream& stream, Param& w, const Tensor& dy, const Tensor& x) {
  Gemm(stream, {.a = dy, .b = x, .c = w.main_grad, .transpose_a = true, .accumulate = true});
}

void InputGradient(Stream& stream, const Tensor& dy, const Param& w, GradSlot& dx) {
  if (!dx.wanted()) return;
  const bool accumulate = dx.accumulate();
  Gemm(stream, {.a = dy, .b = w.value, .c = dx.to(), .accumulate = accumulate});
}

// hidden is not a value of the tape: its gradient goes on to gate and up in the kernel that makes
// it.
struct Projected {
  Var gate, up;
  Tensor hidden;
};

Projected RecordProducts(Tape& tape, const Var& x, Param& w_gate, Param& w_up, const Outputs& made,
                         const std::vector<Range>& ranges) {
  Stream& stream = tape.stream();
  const auto both = std::make_shared<GateAndUp>(stream, tape.Save(x), w_gate, w_up, ranges);
  const bool wider = w_gate.value.dim(0) > w_gate.value.dim(1);
  const auto var = [&](int which) {
    if (!wider) return Var{.value = made[which]};
    return tape.Made(
        made[which], [both, which] { return both->Again(which); }, Rebuild::kProducts);
  };
  const std::array<Var, 1> in = {x};
  std::vector<Var> out = tape.Record(
      in, std::vector<Var>{var(0), var(1)},
      {.name = "swiglu_ffn_in",
       .params = {&w_gate, &w_up},
       .input_grad =
           [&stream, &w_gate, &w_up](std::span<const Tensor> dy, std::span<GradSlot> dx) {
             InputGradient(stream, dy[1], w_up, dx[0]);
             InputGradient(stream, dy[0], w_gate, dx[0]);
           },
       .weight_grad =
           [&stream, &w_gate, &w_up, x = tape.Save(x)](std::span<const Tensor> dy) {
             WeightGradient(stream, w_up, dy[1], x.get());
             WeightGradient(stream, w_gate, dy[0], x.get());
           }});
  return {.gate = std::move(out[0]), .up = std::move(out[1]), .hidden = made[2]};
}

Projected Project(Tape& tape, const Var& x, Param& w_gate, Param& w_up) {
  const Outputs made =
      EmptyOutputs(x.value, WithLast(x.value, w_gate.value.dim(0)), /*with_hidden=*/true);
  const Range all = {0, x.value.dim(0)};
  MakeRows(tape.stream(), x.value, w_gate, w_up, made, all);
  return RecordProducts(tape, x, w_gate, w_up, made, {all});
}

// Of all rows, multiplied as they come.
Projected ProjectComing(Tape& tape, const Var& own, Param& w_gate, Param& w_up, RowSums& sums) {
  const Outputs made =
      EmptyOutputs(own.value, {sums.rows(), w_gate.value.dim(0)}, /*with_hidden=*/true);
  std::vector<Range> ranges;
  const Var x = sums.EnterRows(tape, own, [&](int64_t begin, int64_t end, const Tensor& rows) {
    MakeRows(tape.stream(), rows, w_gate, w_up, made, ranges.emplace_back(begin, end));
  });
  return RecordProducts(tape, x, w_gate, w_up, made, ranges);
}

void CheckShapes(const Param& w_gate, const Param& w_up, const Param& w_down) {
  CHECK_EQ(w_gate.value.shape(), w_up.value.shape()) << w_gate.spec.name;
  CHECK(w_gate.value.shape().rank() == 2 && w_down.value.shape().rank() == 2 &&
        w_gate.value.dim(0) == w_down.value.dim(1))
      << w_gate.spec.name << " " << w_gate.value.shape() << " and " << w_down.spec.name << " "
      << w_down.value.shape();
}

}  // namespace

Var SwiGluFfn(Tape& tape, const Var& x, Param& w_gate, Param& w_up, Param& w_down,
              const Var* residual) {
  CheckShapes(w_gate, w_up, w_down);
  Stream& stream = tape.stream();
  const Projected made = Project(tape, x, w_gate, w_up);
  const Tensor y = Like(x.value, WithLast(x.value, w_down.value.dim(0)));
  if (residual != nullptr) CHECK_EQ(residual->shape(), y.shape()) << w_down.spec.name;
  Gemm(stream, {.a = made.hidden,
                .b = w_down.value,
                .c = y,
                .transpose_b = true,
                .addend = residual == nullptr ? Tensor() : residual->value});
  // Kept for the weight gradient, or left there by the input gradient.
  const auto hidden = std::make_shared<Tensor>();
  if (tape.rebuild() == Rebuild::kNothing) *hidden = made.hidden;
  std::vector<Var> in = {made.gate, made.up};
  if (residual != nullptr) in.push_back(*residual);
  return tape.Record(
      in, std::vector<Tensor>{y},
      {.name = "swiglu_ffn_out",
       .params = {&w_down},
       .input_grad =
           [&stream, &w_down, hidden, gate = tape.Save(made.gate), up = tape.Save(made.up)](
               std::span<const Tensor> dy, std::span<GradSlot> dx) {
             if (dx.size() > 2) PassGradient(stream, dx[2], dy[0]);
             const Tensor of_gate = gate.get();
             const auto empty = [&] { return Like(of_gate, of_gate.shape()); };
             const Tensor dgate = empty(), dup = empty();
             const bool again = !hidden->defined();
             if (again) *hidden = empty();
             SwiGluFfnBackward(stream, {.dy = dy[0],
                                        .w_down = w_down.value,
                                        .gate = of_gate,
                                        .up = up.get(),
                                        .dgate = dgate,
                                        .dup = dup,
                                        .hidden = again ? *hidden : Tensor()});
             dx[0].Set(dgate);
             dx[1].Set(dup);
           },
       .weight_grad =
           [&stream, &w_down, hidden](std::span<const Tensor> dy) {
             WeightGradient(stream, w_down, dy[0], *hidden);
             *hidden = {};
           }})[0];
}

Var SwiGluFfnSum(Tape& tape, const Var& own, Param& w_gate, Param& w_up, Param& w_down,
                 RowSums& sums) {
  CheckShapes(w_gate, w_up, w_down);
  Stream& stream = tape.stream();
  const Projected made = ProjectComing(tape, own, w_gate, w_up, sums);
  const Tensor y = tape.Kept([&]() -> std::vector<Tensor> {
    const auto multiply = [&](int64_t begin, int64_t end, const Tensor& to) {
      Gemm(stream,
           {.a = made.hidden.Rows(begin, end), .b = w_down.value, .c = to, .transpose_b = true});
    };
    return {sums.SumRows(w_down.value.dim(0), own.value, multiply)};
  })[0];
  const auto hidden = std::make_shared<Tensor>();
  if (tape.rebuild() == Rebuild::kNothing) *hidden = made.hidden;
  const auto all = std::make_shared<Tensor>();  // gradients of all rows, from input to weights
  const auto input_grad = [&stream, &w_down, &sums, hidden, all, gate = tape.Save(made.gate),
                           up = tape.Save(made.up)](std::span<const Tensor> dy,
                                                    std::span<GradSlot> dx) {
    const Tensor of_gate = gate.get(), of_up = up.get();
    const auto empty = [&] { return Like(of_gate, of_gate.shape()); };
    const Tensor dgate = empty(), dup = empty();
    const bool again = !hidden->defined();
    if (again) *hidden = empty();
    *all = sums.GatherRows(dy[0], [&](int64_t begin, int64_t end, const Tensor& rows) {
      SwiGluFfnBackward(stream, {.dy = rows,
                                 .w_down = w_down.value,
                                 .gate = of_gate.Rows(begin, end),
                                 .up = of_up.Rows(begin, end),
                                 .dgate = dgate.Rows(begin, end),
                                 .dup = dup.Rows(begin, end),
                                 .hidden = again ? hidden->Rows(begin, end) : Tensor()});
    });
    dx[0].Set(dgate);
    dx[1].Set(dup);
  };
  const auto weight_grad = [&stream, &w_down, hidden, all](std::span<const Tensor>) {
    WeightGradient(stream, w_down, *all, *hidden);
    *hidden = {};
    *all = {};
  };
  return tape.Record({made.gate, made.up}, y,
                     {.name = "swiglu_ffn_out",
                      .params = {&w_down},
                      .input_grad = input_grad,
                      .weight_grad = weight_grad});
}

}  // namespace lt2
