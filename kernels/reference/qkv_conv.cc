#include "kernels/qkv_conv.h"

#include <cmath>

#include "kernels/reference/gate.h"
#include "kernels/reference/store.h"

namespace lt2::reference {
namespace {

// One of q, k, v. dim: channels that are normed together, 0 where none are.
struct Part {
  const Tensor &x, &w;
  int64_t dim;
  double eps;
  const Documents& documents;

  int64_t channels() const { return w.dim(0); }
  int64_t width() const { return w.dim(1); }
  // Calls fn(input token, tap) for what the token's convolution reads.
  template <class Fn>
  void ForEachTap(int64_t token, const Fn& fn) const {
    const int64_t position = documents.positions().data<int32_t>()[token];
    for (int64_t tap = 0; tap < width(); ++tap) {
      const int64_t back = width() - 1 - tap;
      if (back <= position) fn(token - back, tap);
    }
  }
  double PreActivation(int64_t token, int64_t c) const {
    double u = 0;
    ForEachTap(token, [&](int64_t from, int64_t tap) {
      u += w.data<double>()[c * width() + tap] * x.data<double>()[from * channels() + c];
    });
    return u;
  }
  double Activated(int64_t token, int64_t c) const {
    const double u = PreActivation(token, c);
    return u * Sigmoid(u);
  }
  // Channels that share a norm; one where none do.
  int64_t head() const { return dim == 0 ? 1 : dim; }
  // One over the length of the head that begins at channel `first`.
  double Rho(int64_t token, int64_t first) const {
    if (dim == 0) return 1;
    double squares = 0;
    for (int64_t c = first; c < first + dim; ++c) squares += std::pow(Activated(token, c), 2);
    return 1 / std::sqrt(squares + eps);
  }
};

template <class Args>
Part PartOf(const Args& a, int p) {
  return {a.x_NC[p], a.w_CW[p], p < 2 ? a.head_dim : 0, a.eps, a.documents};
}

// Calls fn(token, first channel) for each head.
template <class Fn>
void ForEachHead(const Part& part, const Fn& fn) {
  for (int64_t t = 0; t < part.x.dim(0); ++t) {
    for (int64_t first = 0; first < part.channels(); first += part.head()) fn(t, first);
  }
}

void ForwardOf(const Part& part, double* y) {
  ForEachHead(part, [&](int64_t t, int64_t first) {
    const double rho = part.Rho(t, first);
    for (int64_t c = first; c < first + part.head(); ++c) {
      y[t * part.channels() + c] = part.Activated(t, c) * rho;
    }
  });
}

void BackwardOf(const Part& part, const Tensor& dy_NC, double* dx, double* dw) {
  const int64_t channels = part.channels(), width = part.width();
  ForEachHead(part, [&](int64_t t, int64_t first) {
    const double* dy = dy_NC.data<double>() + t * channels;
    const double rho = part.Rho(t, first);
    // y = a ρ, and dρ/da_c = -ρ³ a_c.
    double drho = 0;
    for (int64_t c = first; c < first + part.dim; ++c) drho += dy[c] * part.Activated(t, c);
    for (int64_t c = first; c < first + part.head(); ++c) {
      const double da = rho * dy[c] - std::pow(rho, 3) * part.Activated(t, c) * drho;
      const double du = da * GateSlope(GateKind::kSwish, part.PreActivation(t, c));
      part.ForEachTap(t, [&](int64_t from, int64_t tap) {
        if (dw != nullptr) {
          dw[c * width + tap] += du * part.x.data<double>()[from * channels + c];
        }
        if (dx != nullptr) {
          dx[from * channels + c] += du * part.w.data<double>()[c * width + tap];
        }
      });
    }
  });
}

}  // namespace

void QkvConvForward(Stream&, const QkvConvForwardArgs& a) {
  for (int p = 0; p < kQkv; ++p) ForwardOf(PartOf(a, p), a.y_NC[p].data<double>());
}

void QkvConvBackward(Stream&, const QkvConvBackwardArgs& a) {
  for (int p = 0; p < kQkv; ++p) {
    if (a.dx_NC[p].defined() && !a.accumulate_dx[p]) Tensor(a.dx_NC[p]).Zero();
    BackwardOf(PartOf(a, p), a.dy_NC[p], DataOrNull(a.dx_NC[p]), DataOrNull(a.dw_CW[p]));
  }
}

}  // namespace lt2::reference
