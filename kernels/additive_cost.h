// Sizes and costs of the additive scans (scan_scalar.h, scan_channel.h): those of the chunked
// algorithm.
#pragma once

#include "kernels/documents.h"
#include "kernels/kernel.h"

namespace lt2 {

struct AdditiveSizes {
  AdditiveSizes(const Tensor& q_NHK, const Tensor& v_NGV)
      : tokens(q_NHK.dim(0)),
        key_heads(q_NHK.dim(1)),
        heads(v_NGV.dim(1)),
        k(q_NHK.dim(2)),
        v(v_NGV.dim(2)) {}
  // Tokens times value heads.
  double rows() const { return static_cast<double>(tokens * heads); }
  // Bytes of q, k, v, o and the gates, each once.
  double StreamBytes(DType dtype, int64_t gates) const {
    return static_cast<double>(tokens * SizeOf(dtype)) *
           static_cast<double>(2 * key_heads * k + 2 * heads * v + heads * gates);
  }

  int64_t tokens, key_heads, heads, k, v;
};

// gates: log-decays per token and value head.
inline Cost AdditiveForwardCost(const Tensor& q, const Tensor& v, int64_t gates) {
  const AdditiveSizes n(q, v);
  constexpr double c = kChunk;
  const double per_row = c * static_cast<double>(n.k + n.v) + 4.0 * static_cast<double>(n.k * n.v);
  return {.flops = n.rows() * per_row, .bytes = n.StreamBytes(q.dtype(), gates)};
}

inline Cost AdditiveBackwardCost(const Tensor& q, const Tensor& v, int64_t gates,
                                 const Tensor& states) {
  const AdditiveSizes n(q, v);
  constexpr double c = kChunk;
  const double per_row = 3 * c * static_cast<double>(n.k) + 2 * c * static_cast<double>(n.v) +
                         8.0 * static_cast<double>(n.k * n.v);
  return {.flops = n.rows() * per_row,
          .bytes = 2 * n.StreamBytes(q.dtype(), gates) + static_cast<double>(states.bytes())};
}

inline Cost AdditiveStepCost(const Tensor& q, const Tensor& v, int64_t gates, const Tensor& state) {
  return {.flops = 5.0 * static_cast<double>(state.size()),
          .bytes = AdditiveSizes(q, v).StreamBytes(q.dtype(), gates) +
                   2.0 * static_cast<double>(state.bytes())};
}

}  // namespace lt2
