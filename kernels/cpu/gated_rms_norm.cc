#include "kernels/gated_rms_norm.h"

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/gate.h"
#include "kernels/cpu/rms_norm.h"

namespace lt2::cpu {
namespace {

template <class T, class Gate>
void Forward(const GatedRmsNormForwardArgs& args) {
  const int64_t v = args.w.size(), size = args.x.size(), rows = size / v;
  const T *x_RV = args.x.data<T>(), *gate_RV = args.gate.data<T>(), *w = args.w.data<T>();
  T *y_RV = args.y.data<T>(), *rstd_R = args.rstd.data<T>();
  ForEachBlock(rows, 64, size, [=, eps = args.eps](int64_t, int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      const T *x = x_RV + n * v, *gate = gate_RV + n * v;
      T* y = y_RV + n * v;
      const T rstd = ReciprocalRms(x, v, eps);
#pragma omp simd
      for (int64_t i = 0; i < v; ++i) y[i] = x[i] * rstd * w[i] * Gate::Value(gate[i]);
      rstd_R[n] = rstd;
    }
  });
}

// One row, after which e = dy act(gate) is the gradient that reaches the norm.
template <class T, class Gate>
void GateBackward(const T* dy, const T* x, const T* gate, const T* w, T rstd, int64_t v, T* e,
                  T* dgate, T* dw) {
#pragma omp simd
  for (int64_t i = 0; i < v; ++i) {
    T value, slope;
    Gate::ValueAndSlope(gate[i], value, slope);
    const T normed = x[i] * rstd;
    e[i] = dy[i] * value;
    dgate[i] = dy[i] * normed * w[i] * slope;
    dw[i] += normed * e[i];
  }
}

template <class T, class Gate>
void Backward(const GatedRmsNormBackwardArgs& args) {
  const int64_t v = args.w.size(), size = args.x.size(), rows = size / v;
  const T *dy = args.dy.data<T>(), *x = args.x.data<T>(), *gate = args.gate.data<T>();
  const T *w = args.w.data<T>(), *rstd = args.rstd.data<T>();
  T *dx = DataOrNull<T>(args.dx), *dgate = DataOrNull<T>(args.dgate);
  const bool accumulate_dx = args.accumulate_dx, accumulate_dgate = args.accumulate_dgate;
  const RowSums<T> sums(rows, v);
  ForEachBlock(rows, sums.Block(rows), size, [=](int64_t block, int64_t begin, int64_t end) {
    thread_local std::vector<T> scratch;  // e and, where it cannot go straight to its place, dgate
    if (static_cast<int64_t>(scratch.size()) < 2 * v) scratch.resize(2 * v);
    T *e = scratch.data(), *spare = e + v, *dw = sums.Line(block);
    const bool dgate_in_place = dgate != nullptr && !accumulate_dgate;
    for (int64_t n = begin; n < end; ++n) {
      const int64_t row = n * v;
      T* dgate_row = dgate_in_place ? dgate + row : spare;
      GateBackward<T, Gate>(dy + row, x + row, gate + row, w, rstd[n], v, e, dgate_row, dw);
      if (dgate != nullptr && accumulate_dgate) Store(dgate + row, spare, v, true);
      if (dx == nullptr) continue;
      const T pull = RmsNormPull(e, w, x + row, rstd[n], v), r = rstd[n];
      const T* x_row = x + row;
      T* dx_row = dx + row;
      if (accumulate_dx) {
#pragma omp simd
        for (int64_t i = 0; i < v; ++i) dx_row[i] += e[i] * w[i] * r - pull * x_row[i];
      } else {
#pragma omp simd
        for (int64_t i = 0; i < v; ++i) dx_row[i] = e[i] * w[i] * r - pull * x_row[i];
      }
    }
  });
  sums.AddTo(args.dw.data<T>(), 0, v);
}

}  // namespace

void GatedRmsNormForward(Stream&, const GatedRmsNormForwardArgs& args) {
  DispatchFloat(args.x.dtype(), [&]<class T>() {
    DispatchGate(args.kind, [&]<class Gate>() { Forward<T, Gate>(args); });
  });
}

void GatedRmsNormBackward(Stream&, const GatedRmsNormBackwardArgs& args) {
  DispatchFloat(args.x.dtype(), [&]<class T>() {
    DispatchGate(args.kind, [&]<class Gate>() { Backward<T, Gate>(args); });
  });
}

}  // namespace lt2::cpu
