// Native sparse attention (Yuan et al., arXiv 2502.11089) from its operators: to the means of past
// blocks, to the tokens of the blocks that weigh most there, and to the last tokens.
//
//   k̄, v̄ = BlockMean(k), BlockMean(v)
//   o = σ(g_0) CompressedAttention(q, k̄, v̄)
//     + σ(g_1) SelectedAttention(q, k, v, SelectBlocks(q, k̄))
//     + σ(g_2) Attention(q, k, v, window)
#pragma once

#include "core/tape.h"
#include "kernels/documents.h"

namespace lt2 {

struct NsaOptions {
  double scale = 1;
  int64_t block = 64;     // tokens
  int64_t selected = 16;  // blocks, the first, the previous and the query's own among them
  int64_t window = 512;   // tokens, the query's own included
};

struct NsaOutput {
  Var o_NHE;
  Tensor blocks_NGS;    // I32: what was selected
  Tensor k_CGD, v_CGE;  // the means of blocks
};

// From q [M, H, D], k [N, G, D], v [N, G, E] and gates [M, H, 3], M query tokens of N; H a multiple
// of G.
NsaOutput NsaAttention(Tape& tape, const Var& q_NHD, const Var& k_NGD, const Var& v_NGE,
                       const Var& gates_NH3, const NsaOptions& options, const Documents& documents);

}  // namespace lt2
