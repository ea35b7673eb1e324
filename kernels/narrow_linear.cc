#include "kernels/narrow_linear.h"

#include "kernels/gemm.h"

namespace lt2 {
namespace {

double BytesOf(const std::vector<Tensor>& tensors) {
  double bytes = 0;
  for (const Tensor& tensor : tensors) bytes += static_cast<double>(tensor.bytes());
  return bytes;
}

// 2 per weight and row.
double FlopsOf(const std::vector<Tensor>& y, int64_t width) {
  double outputs = 0;
  for (const Tensor& part : y) outputs += static_cast<double>(part.size());
  return 2 * outputs * static_cast<double>(width);
}

// The parts that a gradient flowed into.
template <class Part>
std::vector<Tensor> Reached(std::span<const Tensor> dy, const std::vector<Param*>& w,
                            const Part& part) {
  std::vector<Tensor> parts;
  for (size_t i = 0; i < w.size(); ++i) {
    if (dy[i].defined()) parts.push_back(part(i));
  }
  return parts;
}

}  // namespace

Cost CostOf(const NarrowLinearForwardArgs& a) {
  return {.flops = FlopsOf(a.y, a.x.shape().back()),
          .bytes = static_cast<double>(a.x.bytes()) + BytesOf(a.w) + BytesOf(a.y)};
}

Cost CostOf(const NarrowLinearInputArgs& a) {
  const double passes = a.accumulate_dx ? 2 : 1;
  return {.flops = FlopsOf(a.dy, a.dx.shape().back()),
          .bytes = passes * static_cast<double>(a.dx.bytes()) + BytesOf(a.w) + BytesOf(a.dy)};
}

Cost CostOf(const NarrowLinearWeightArgs& a) {
  return {.flops = FlopsOf(a.dy, a.x.shape().back()),
          .bytes = static_cast<double>(a.x.bytes()) + BytesOf(a.dy) + 2 * BytesOf(a.dw)};
}

Cost CostOf(const NarrowLinearBackwardArgs& a) {
  const double passes = a.accumulate_dx ? 2 : 1;
  return {.flops = 2 * FlopsOf(a.dy, a.x.shape().back()),
          .bytes = static_cast<double>(a.x.bytes()) + passes * static_cast<double>(a.dx.bytes()) +
                   BytesOf(a.w) + BytesOf(a.dy) + 2 * BytesOf(a.dw)};
}

void NarrowLinearInParts(Stream& stream, const NarrowLinearForwardArgs& args) {
  for (size_t i = 0; i < args.w.size(); ++i) {
    Gemm(stream, {.a = args.x, .b = args.w[i], .c = args.y[i], .transpose_b = true});
  }
}

void NarrowLinearInParts(Stream& stream, const NarrowLinearInputArgs& args) {
  for (size_t i = 0; i < args.w.size(); ++i) {
    Gemm(
        stream,
        {.a = args.dy[i], .b = args.w[i], .c = args.dx, .accumulate = args.accumulate_dx || i > 0});
  }
}

void NarrowLinearInParts(Stream& stream, const NarrowLinearWeightArgs& args) {
  for (size_t i = 0; i < args.dw.size(); ++i) {
    Gemm(stream,
         {.a = args.dy[i], .b = args.x, .c = args.dw[i], .transpose_a = true, .accumulate = true});
  }
}

std::vector<Var> NarrowLinear(Tape& tape, const Var& x, const std::vector<Param*>& w) {
  CHECK(!w.empty());
  Stream& stream = tape.stream();
  NarrowLinearForwardArgs args{.x = x.value};
  for (const Param* part : w) {
    CHECK_EQ(part->value.shape().rank(), 2) << part->spec.name;
    CHECK_EQ(part->value.dim(1), x.shape().back()) << part->spec.name;
    Shape shape = x.shape();
    shape[shape.rank() - 1] = part->value.dim(0);
    args.w.push_back(part->value);
    args.y.push_back(Tensor::Empty(shape, x.value.dtype(), tape.device()));
  }
  NarrowLinearForward(stream, args);
  const auto input_grad = [&stream, w](std::span<const Tensor> dy, std::span<GradSlot> dx) {
    if (!dx[0].wanted()) return;
    const bool accumulate = dx[0].accumulate();
    NarrowLinearInput(stream, {.dy = Reached(dy, w, [&](size_t i) { return dy[i]; }),
                               .w = Reached(dy, w, [&](size_t i) { return w[i]->value; }),
                               .dx = dx[0].to(),
                               .accumulate_dx = accumulate});
  };
  const auto weight_grad = [&stream, w, x = tape.Save(x)](std::span<const Tensor> dy) {
    NarrowLinearWeight(stream, {.x = x.get(),
                                .dy = Reached(dy, w, [&](size_t i) { return dy[i]; }),
                                .dw = Reached(dy, w, [&](size_t i) { return w[i]->main_grad; })});
  };
  const auto both_grad = [&stream, w, x = tape.Save(x), weight_grad](std::span<const Tensor> dy,
                                                                     std::span<GradSlot> dx) {
    if (!dx[0].wanted()) return weight_grad(dy);
    const bool accumulate = dx[0].accumulate();
    NarrowLinearBackward(stream, {.x = x.get(),
                                  .dy = Reached(dy, w, [&](size_t i) { return dy[i]; }),
                                  .w = Reached(dy, w, [&](size_t i) { return w[i]->value; }),
                                  .dx = dx[0].to(),
                                  .accumulate_dx = accumulate,
                                  .dw = Reached(dy, w, [&](size_t i) { return w[i]->main_grad; })});
  };
  return tape.Record(std::span(&x, 1), args.y,
                     {.name = "narrow_linear",
                      .params = w,
                      .input_grad = input_grad,
                      .weight_grad = weight_grad,
                      .both_grad = both_grad});
}

}  // namespace lt2
