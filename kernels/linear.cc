#include "kernels/linear.h"

#include "kernels/gemm.h"

namespace lt2 {

Var Linear(Tape& tape, Var x, Param& w) {
  CHECK_EQ(w.value.shape().rank(), 2) << w.spec.name;
  Stream& stream = tape.stream();
  Shape shape = x.shape();
  shape[shape.rank() - 1] = w.value.dim(0);
  Tensor y = Tensor::Empty(shape, x.value.dtype(), tape.device());
  Gemm(stream, {.a = x.value, .b = w.value, .c = y, .transpose_b = true});
  return tape.Record(
      {x}, y,
      {.name = "linear",
       .params = {&w},
       .input_grad =
           [&stream, &w](std::span<const Tensor> dy, std::span<GradSlot> dx) {
             if (!dx[0].wanted()) return;
             const bool accumulate = dx[0].accumulate();
             Gemm(stream, {.a = dy[0], .b = w.value, .c = dx[0].to(), .accumulate = accumulate});
           },
       .weight_grad =
           [&stream, &w, x = x.value](std::span<const Tensor> dy) {
             Gemm(stream,
                  {.a = dy[0], .b = x, .c = w.main_grad, .transpose_a = true, .accumulate = true});
           }});
}

}  // namespace lt2
