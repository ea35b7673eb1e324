// The short convolutions of queries, keys and values, each y = silu(conv(x)) (short_conv.h) without
// bias; queries and keys are then normed to length 1 per head (l2_norm.h):
//
//   q̂ = q ρ, ρ = (sum(q²) + eps)^(-1/2) over the head's channels
//
// Three tensors in, three out, in the order q, k, v; each [N, its channels].
#pragma once

#include <array>

#include "core/tape.h"
#include "kernels/documents.h"
#include "kernels/kernel.h"

namespace lt2 {

inline constexpr int kQkv = 3;

struct QkvConvForwardArgs {
  std::array<Tensor, kQkv> x_NC, w_CW;
  int64_t head_dim = 0;  // divides the channels of q and of k
  double eps = 0;
  Documents documents;
  std::array<Tensor, kQkv> y_NC;
};

// Only the inputs are kept; with u = conv(x), q = silu(u):
// dq = ρ (dq̂ - q̂ (dq̂ · q̂)),  du = dq silu'(u), and so on as in short_conv.h.
struct QkvConvBackwardArgs {
  std::array<Tensor, kQkv> x_NC, w_CW;
  int64_t head_dim = 0;
  double eps = 0;
  Documents documents;
  std::array<Tensor, kQkv> dy_NC;
  std::array<Tensor, kQkv> dx_NC;  // undefined: not wanted
  std::array<bool, kQkv> accumulate_dx = {};
  std::array<Tensor, kQkv> dw_CW;  // added to; undefined: not wanted
};

LT2_KERNEL(QkvConvForward, QkvConvForwardArgs)
LT2_KERNEL(QkvConvBackward, QkvConvBackwardArgs)

// The same by the operators that this one joins, on the stream's device.
void QkvConvForwardInParts(Stream& stream, const QkvConvForwardArgs& args);
void QkvConvBackwardInParts(Stream& stream, const QkvConvBackwardArgs& args);

// x_NC -> y_NC. Rows before a document's start are zero.
std::array<Var, kQkv> QkvConv(Tape& tape, const std::array<Var, kQkv>& x_NC,
                              const std::array<Param*, kQkv>& w_CW, int64_t head_dim, double eps,
                              const Documents& documents);

}  // namespace lt2
