#include "kernels/linear.h"

#include "kernels/gemm.h"

namespace lt2 {

Var Linear(Tape& tape, Var x, Param& w, bool rebuild) {
  CHECK_EQ(w.value.shape().rank(), 2) << w.spec.name;
  Stream& stream = tape.stream();
  const auto project = [&stream, &w, x = tape.Save(x)] {
    const Tensor from = x.get();
    Shape shape = from.shape();
    shape[shape.rank() - 1] = w.value.dim(0);
    const Tensor to = Tensor::Empty(shape, from.dtype(), from.device());
    Gemm(stream, {.a = from, .b = w.value, .c = to, .transpose_b = true});
    return to;
  };
  const Var y = rebuild ? tape.Make(project) : Var{.value = project()};
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
           [&stream, &w, x = tape.Save(x)](std::span<const Tensor> dy) {
             Gemm(stream, {.a = dy[0],
                           .b = x.get(),
                           .c = w.main_grad,
                           .transpose_a = true,
                           .accumulate = true});
           }});
}

}  // namespace lt2
