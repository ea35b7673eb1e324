// Sizes of the scans over a recurrent state, with what their checks and costs share.
#pragma once

#include "kernels/documents.h"

namespace lt2 {

struct ScanDims {
  ScanDims(const Tensor& q_NHK, const Tensor& v_NGV)
      : tokens(q_NHK.dim(0)),
        key_heads(q_NHK.dim(1)),
        heads(v_NGV.dim(1)),
        k(q_NHK.dim(2)),
        v(v_NGV.dim(2)) {}
  // Tokens times value heads.
  double rows() const { return static_cast<double>(tokens * heads); }
  // Bytes of q, k, v, o and the gates of a token and value head, each once.
  double StreamBytes(DType dtype, int64_t gates) const {
    return static_cast<double>(tokens * SizeOf(dtype)) *
           static_cast<double>(2 * key_heads * k + 2 * heads * v + heads * gates);
  }

  int64_t tokens, key_heads, heads, k, v;
};

// initial: [D or 1, G, K, state_width], or undefined.
inline void CheckScan(const Tensor& q_NHK, const Tensor& k_NHK, const Tensor& v_NGV,
                      const Tensor& initial, int64_t state_width, const Documents& documents) {
  const ScanDims n(q_NHK, v_NGV);
  CHECK_EQ(n.tokens, documents.tokens());
  CHECK_EQ(n.heads % n.key_heads, 0) << n.heads << " value heads over " << n.key_heads;
  CHECK_EQ(k_NHK.shape(), q_NHK.shape());
  CHECK_EQ(v_NGV.shape(), (Shape{n.tokens, n.heads, n.v}));
  if (initial.defined()) {
    const int64_t states = initial.dim(0) == 1 ? 1 : documents.capacity();
    CHECK_EQ(initial.shape(), (Shape{states, n.heads, n.k, state_width}));
  }
}

}  // namespace lt2
