#include "kernels/embedding.h"

namespace lt2 {

Cost CostOf(const EmbeddingForwardArgs& args) {
  return {.flops = 0, .bytes = 2.0 * args.y.bytes() + args.ids.bytes()};
}

Cost CostOf(const EmbeddingBackwardArgs& args) {
  return {.flops = 1.0 * args.dy.size(), .bytes = 3.0 * args.dy.bytes() + args.ids.bytes()};
}

Var Embedding(Tape& tape, const Tensor& ids, Param& w) {
  Stream& stream = tape.stream();
  Shape shape = ids.shape();
  shape.push_back(w.value.dim(1));
  Tensor y = Tensor::Empty(shape, w.value.dtype(), tape.device());
  EmbeddingForward(stream, {.ids = ids,
                            .w = w.value,
                            .y = y,
                            .first_row = w.held.begin[0],
                            .vocabulary = w.spec.shape[0]});
  return tape.Record(
      {}, y,
      {.name = "embedding",
       .params = {&w},
       .input_grad = [&stream, &w, ids](std::span<const Tensor> dy, std::span<GradSlot>) {
         EmbeddingBackward(
             stream, {.dy = dy[0], .ids = ids, .dw = w.main_grad, .first_row = w.held.begin[0]});
       }});
}

}  // namespace lt2
