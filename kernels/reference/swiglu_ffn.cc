#include "kernels/swiglu_ffn.h"

#include "kernels/reference/gate.h"

namespace lt2::reference {
namespace {

// x wᵀ at (row, unit).
double Projected(const Tensor& x, const Tensor& w, int64_t row, int64_t unit) {
  const int64_t width = x.shape().back();
  double sum = 0;
  for (int64_t i = 0; i < width; ++i) {
    sum += x.data<double>()[row * width + i] * w.data<double>()[unit * width + i];
  }
  return sum;
}

void PutIfWanted(const Tensor& to, int64_t i, double value) {
  if (to.defined()) to.data<double>()[i] = value;
}

}  // namespace

void SwiGluFfnForward(Stream&, const SwiGluFfnForwardArgs& args) {
  const int64_t rows = args.gate.shape().rows(), units = args.gate.shape().back();
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t unit = 0; unit < units; ++unit) {
      const double gate = Projected(args.x, args.w_gate, row, unit);
      const double up = Projected(args.x, args.w_up, row, unit);
      const int64_t i = row * units + unit;
      args.gate.data<double>()[i] = gate;
      args.up.data<double>()[i] = up;
      PutIfWanted(args.hidden, i, up * Gate(GateKind::kSwish, gate));
    }
  }
}

void SwiGluFfnBackward(Stream&, const SwiGluFfnBackwardArgs& args) {
  const int64_t rows = args.gate.shape().rows(), units = args.gate.shape().back();
  const int64_t width = args.dy.shape().back();
  const double *dy = args.dy.data<double>(), *w = args.w_down.data<double>();
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t unit = 0; unit < units; ++unit) {
      double dhidden = 0;
      for (int64_t o = 0; o < width; ++o) dhidden += dy[row * width + o] * w[o * units + unit];
      const int64_t i = row * units + unit;
      const double gate = args.gate.data<double>()[i], up = args.up.data<double>()[i];
      const double act = Gate(GateKind::kSwish, gate);
      args.dgate.data<double>()[i] = dhidden * up * GateSlope(GateKind::kSwish, gate);
      args.dup.data<double>()[i] = dhidden * act;
      PutIfWanted(args.hidden, i, up * act);
    }
  }
}

}  // namespace lt2::reference
