#include "kernels/linear.h"

#include <memory>

#include "kernels/elementwise.h"
#include "kernels/gemm.h"

namespace lt2 {
namespace {

void InputGradient(Stream& stream, const Tensor& dy, const Param& w, GradSlot& dx) {
  if (!dx.wanted()) return;
  const bool accumulate = dx.accumulate();
  Gemm(stream, {.a = dy, .b = w.value, .c = dx.to(), .accumulate = accumulate});
}

WeightGrad WeightGradient(Stream& stream, Param& w, Saved x) {
  return [&stream, &w, x = std::move(x)](std::span<const Tensor> dy) {
    Gemm(stream,
         {.a = dy[0], .b = x.get(), .c = w.main_grad, .transpose_a = true, .accumulate = true});
  };
}

Shape OutputShape(const Tensor& x, const Param& w) {
  Shape shape = x.shape();
  shape[shape.rank() - 1] = w.value.dim(0);
  return shape;
}

}  // namespace

Var Linear(Tape& tape, Var x, Param& w) {
  CHECK_EQ(w.value.shape().rank(), 2) << w.spec.name;
  Stream& stream = tape.stream();
  const auto project = [&stream, &w, x = tape.Save(x)] {
    const Tensor from = x.get();
    const Tensor to = Tensor::Empty(OutputShape(from, w), from.dtype(), from.device());
    Gemm(stream, {.a = from, .b = w.value, .c = to, .transpose_b = true});
    return to;
  };
  const bool wider = w.value.dim(0) > w.value.dim(1);
  const Var y = wider ? tape.Make(project, Rebuild::kProducts) : Var{.value = project()};
  return tape.Record({x}, y,
                     {.name = "linear",
                      .params = {&w},
                      .input_grad =
                          [&stream, &w](std::span<const Tensor> dy, std::span<GradSlot> dx) {
                            InputGradient(stream, dy[0], w, dx[0]);
                          },
                      .weight_grad = WeightGradient(stream, w, tape.Save(x))});
}

Var LinearSum(Tape& tape, const Var& x, Param& w, RowSums* sums) {
  if (sums == nullptr) return Linear(tape, x, w);
  CHECK(x.shape().rank() == 2 && w.value.shape().rank() == 2) << w.spec.name;
  Stream& stream = tape.stream();
  const Tensor y = tape.Kept([&]() -> std::vector<Tensor> {
    const auto multiply = [&](int64_t begin, int64_t end, const Tensor& to) {
      Gemm(stream, {.a = x.value.Rows(begin, end), .b = w.value, .c = to, .transpose_b = true});
    };
    return {sums->SumRows(w.value.dim(0), x.value, multiply)};
  })[0];
  const auto all = std::make_shared<Tensor>();  // gradients of all rows, from input to weights
  return tape.Record(
      {x}, y,
      {.name = "linear",
       .params = {&w},
       .input_grad =
           [&stream, &w, sums, all](std::span<const Tensor> dy, std::span<GradSlot> dx) {
             const bool accumulate = dx[0].accumulate();
             const Tensor to = dx[0].to();
             *all = sums->GatherRows(dy[0], [&](int64_t begin, int64_t end, const Tensor& rows) {
               if (!to.defined()) return;
               Gemm(stream,
                    {.a = rows, .b = w.value, .c = to.Rows(begin, end), .accumulate = accumulate});
             });
           },
       .weight_grad =
           [all, weights = WeightGradient(stream, w, tape.Save(x))](std::span<const Tensor>) {
             weights(std::span(all.get(), 1));
             *all = {};
           }});
}

Var LinearPlus(Tape& tape, Var residual, Var x, Param& w) {
  CHECK_EQ(w.value.shape().rank(), 2) << w.spec.name;
  Stream& stream = tape.stream();
  const Shape shape = OutputShape(x.value, w);
  CHECK_EQ(residual.shape(), shape) << w.spec.name;
  const Tensor y = Tensor::Empty(shape, x.value.dtype(), tape.device());
  Gemm(stream, {.a = x.value, .b = w.value, .c = y, .transpose_b = true, .addend = residual.value});
  return tape.Record({residual, x}, y,
                     {.name = "linear_plus",
                      .params = {&w},
                      .input_grad =
                          [&stream, &w](std::span<const Tensor> dy, std::span<GradSlot> dx) {
                            PassGradient(stream, dx[0], dy[0]);
                            InputGradient(stream, dy[0], w, dx[1]);
                          },
                      .weight_grad = WeightGradient(stream, w, tape.Save(x))});
}

}  // namespace lt2
