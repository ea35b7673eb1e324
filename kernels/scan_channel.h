// The additive state with a decay per key channel: gated linear attention.
//
//   S_t = diag(exp g_t) S_{t-1} + k_t v_t^T
//   o_t = scale S_t^T q_t
//
// g <= 0 per token, value head and key channel (Yang et al.: "Gated Linear Attention Transformers
// with Hardware-Efficient Training", 2024). HGRN2 (Qin et al., 2024) is the case k = 1 - exp(g).
//
// Shapes as in scan_scalar.h: N tokens of D documents, H key heads, G value heads (a multiple of
// H), key width K, value width V, C chunks of at most kChunk tokens.
#pragma once

#include "core/tape.h"
#include "kernels/documents.h"
#include "kernels/kernel.h"
#include "kernels/scan.h"

namespace lt2 {

struct ScanChannelForwardArgs {
  Tensor q_NHK, k_NHK, v_NGV;
  Tensor g_NGK;
  Tensor initial_DGKV;  // undefined: zero
  Documents documents;
  double scale = 1;
  Tensor o_NGV;
  Tensor final_DGKV;  // undefined: not wanted; zero for documents that are not there
  Tensor
      states_CGKV;  // the state each chunk begins with, for the backward; undefined: there is none
};

struct ScanChannelBackwardArgs {
  Tensor q_NHK, k_NHK, v_NGV, g_NGK, initial_DGKV;
  Documents documents;
  double scale = 1;
  Tensor states_CGKV;          // saved by the forward
  Tensor do_NGV, dfinal_DGKV;  // undefined: zero
  Tensor dstates_CGKV;         // working memory
  GradInto dq_NHK, dk_NHK, dv_NGV, dg_NGK, dinitial_DGKV;
};

// One token for each of B sequences; the state is updated in place.
struct ScanChannelStepArgs {
  Tensor q_BHK, k_BHK, v_BGV;
  Tensor g_BGK;
  Tensor state_BGKV;
  double scale = 1;
  Tensor o_BGV;
};

LT2_KERNEL(ScanChannelForward, ScanChannelForwardArgs)
LT2_KERNEL(ScanChannelBackward, ScanChannelBackwardArgs)
LT2_KERNEL(ScanChannelStep, ScanChannelStepArgs)

struct ScanChannelInputs {
  Var q_NHK, k_NHK, v_NGV, g_NGK;
  Var initial_state_DGKV = {};  // optional; D = documents.capacity()
};
// Differentiable in every Var, through both outputs. The outputs and what the backward needs
// survive Recompute.
ScanOutputs ScanChannel(Tape& tape, const ScanChannelInputs& in, double scale,
                        const Documents& documents, bool want_final_state);

}  // namespace lt2
