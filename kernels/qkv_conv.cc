#include "kernels/qkv_conv.h"

#include "kernels/l2_norm.h"
#include "kernels/short_conv.h"

namespace lt2 {
namespace {

bool Normed(int part) { return part < 2; }

// Multiply-adds of the taps, and what norms take.
template <class Args>
Cost CostOfParts(const Args& a, double taps, double norms, double passes) {
  Cost cost;
  for (int p = 0; p < kQkv; ++p) {
    const auto size = static_cast<double>(a.x_NC[p].size());
    cost.flops += taps * 2 * size * static_cast<double>(a.w_CW[p].dim(1));
    if (Normed(p)) cost.flops += norms * size;
    cost.bytes += passes * static_cast<double>(a.x_NC[p].bytes());
  }
  return cost;
}

Tensor RhoOf(const Tensor& y_NC, int64_t head_dim) {
  return Tensor::Empty({y_NC.size() / head_dim}, AccumulatorOf(y_NC.dtype()), y_NC.device());
}

}  // namespace

Cost CostOf(const QkvConvForwardArgs& a) { return CostOfParts(a, 1, 3, 2); }

Cost CostOf(const QkvConvBackwardArgs& a) {
  Cost cost = CostOfParts(a, 3, 8, 3);
  for (int p = 0; p < kQkv; ++p) {
    if (a.accumulate_dx[p]) cost.bytes += static_cast<double>(a.x_NC[p].bytes());
  }
  return cost;
}

void QkvConvForwardInParts(Stream& stream, const QkvConvForwardArgs& a) {
  for (int p = 0; p < kQkv; ++p) {
    const Tensor& y = a.y_NC[p];
    ShortConvForward(stream,
                     {.x_NC = a.x_NC[p], .w_CW = a.w_CW[p], .documents = a.documents, .y_NC = y});
    if (!Normed(p)) continue;
    L2NormForward(stream, {.x = y, .y = y, .rho = RhoOf(y, a.head_dim), .eps = a.eps});
  }
}

void QkvConvBackwardInParts(Stream& stream, const QkvConvBackwardArgs& a) {
  for (int p = 0; p < kQkv; ++p) {
    const Tensor& x = a.x_NC[p];
    Tensor dy = a.dy_NC[p];
    if (Normed(p)) {
      const Tensor y = Tensor::Empty(x.shape(), x.dtype(), x.device());
      const Tensor rho = RhoOf(y, a.head_dim);
      ShortConvForward(stream, {.x_NC = x, .w_CW = a.w_CW[p], .documents = a.documents, .y_NC = y});
      L2NormForward(stream, {.x = y, .y = y, .rho = rho, .eps = a.eps});
      const Tensor through = Tensor::Empty(x.shape(), x.dtype(), x.device());
      L2NormBackward(stream, {.dy = dy, .y = y, .rho = rho, .dx = through});
      dy = through;
    }
    ShortConvBackward(stream, {.x_NC = x,
                               .w_CW = a.w_CW[p],
                               .documents = a.documents,
                               .dy_NC = dy,
                               .dx_NC = a.dx_NC[p],
                               .accumulate_dx = a.accumulate_dx[p],
                               .dw_CW = a.dw_CW[p]});
  }
}

std::array<Var, kQkv> QkvConv(Tape& tape, const std::array<Var, kQkv>& x_NC,
                              const std::array<Param*, kQkv>& w_CW, int64_t head_dim, double eps,
                              const Documents& documents) {
  std::array<Saved, kQkv> saved;
  for (int p = 0; p < kQkv; ++p) {
    const Tensor& x = x_NC[p].value;
    CHECK_EQ(x.shape().rank(), 2);
    CHECK_EQ(x.dim(0), documents.tokens());
    CHECK_EQ(w_CW[p]->value.dim(0), x.dim(1));
    if (Normed(p)) CHECK_EQ(x.dim(1) % head_dim, 0);
    saved[p] = tape.Save(x_NC[p]);
  }
  std::vector<Var> y_NC =
      tape.MakeAll([&stream = tape.stream(), saved, w_CW, head_dim, eps, documents] {
        QkvConvForwardArgs args{.head_dim = head_dim, .eps = eps, .documents = documents};
        for (int p = 0; p < kQkv; ++p) {
          const Tensor x = args.x_NC[p] = saved[p].get();
          args.w_CW[p] = w_CW[p]->value;
          args.y_NC[p] = Tensor::Empty(x.shape(), x.dtype(), x.device());
        }
        QkvConvForward(stream, args);
        return std::vector<Tensor>(args.y_NC.begin(), args.y_NC.end());
      });
  const auto backward = [&stream = tape.stream(), saved, w_CW, head_dim, eps, documents](
                            std::span<const Tensor> dy, std::span<GradSlot> dx) {
    QkvConvBackwardArgs args{.head_dim = head_dim, .eps = eps, .documents = documents};
    for (int p = 0; p < kQkv; ++p) {
      const Tensor x = args.x_NC[p] = saved[p].get();
      args.w_CW[p] = w_CW[p]->value;
      args.dw_CW[p] = w_CW[p]->main_grad;
      args.dy_NC[p] = dy[p].defined() ? dy[p] : Tensor::Zeros(x.shape(), x.dtype(), x.device());
      args.accumulate_dx[p] = dx[p].accumulate();
      args.dx_NC[p] = dx[p].to();
    }
    QkvConvBackward(stream, args);
  };
  const std::vector<Var> out = tape.Record(
      x_NC, std::move(y_NC),
      {.name = "qkv_conv", .params = {w_CW.begin(), w_CW.end()}, .input_grad = backward});
  return {out[0], out[1], out[2]};
}

}  // namespace lt2
