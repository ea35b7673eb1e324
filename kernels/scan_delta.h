// The delta rule: one state S [K, V] per document and value head, corrected toward each key's
// value.
//
//   S'_t = exp(g_t) S_{t-1}
//   u_t  = beta_t (v_t - S'_t^T k_t)
//   S_t  = S'_t + k_t u_t^T
//   o_t  = scale S_t^T q_t
//
// With a log-decay g <= 0 per token and value head this is the gated delta rule (Yang, Kautz,
// Hatamizadeh: "Gated Delta Networks", 2024); with one per key channel as well, exp(g_t) a diagonal
// matrix on the left, Kimi delta attention ("Kimi Linear", 2025); without g it is the delta rule
// (Yang et al.: "Parallelizing Linear Transformers with the Delta Rule over Sequence Length",
// 2024).
//
// Shapes: N tokens of D documents, H key heads, G value heads (a multiple of H: key head h serves
// value heads h·G/H … (h+1)·G/H - 1), key width K, value width V, C chunks of at most kChunk
// tokens. q and k come normalised: beyond beta |k|^2 = 2 the rule itself is unstable. A bf16 run
// has decays, beta and states in float, but for the chunks' states, which are saved as bf16.
#pragma once

#include "core/tape.h"
#include "kernels/documents.h"
#include "kernels/kernel.h"
#include "kernels/linked_scan.h"
#include "kernels/scan.h"

namespace lt2 {

struct ScanDeltaForwardArgs {
  Tensor q_NHK, k_NHK, v_NGV;
  Tensor g_NG, g_NGK;  // at most one; both undefined: no decay
  Tensor beta_NG;
  Tensor initial_DGKV;  // undefined: zero
  Documents documents;
  double scale = 1;
  Tensor o_NGV;        // undefined: not wanted
  Tensor final_DGKV;   // undefined: not wanted; zero for documents that are not there
  Tensor states_CGKV;  // the state each chunk begins with, and
  Tensor u_NGV;        // u_t: for the backward; both undefined where there is none
};

struct ScanDeltaBackwardArgs {
  Tensor q_NHK, k_NHK, v_NGV, g_NG, g_NGK, beta_NG, initial_DGKV;
  Documents documents;
  double scale = 1;
  Tensor states_CGKV, u_NGV;   // saved by the forward
  Tensor do_NGV, dfinal_DGKV;  // undefined: zero
  Tensor dstates_CGKV, e_NGV;  // working memory
  GradInto dq_NHK, dk_NHK, dv_NGV, dg_NG, dg_NGK, dbeta_NG, dinitial_DGKV;
};

// One token for each of B sequences; the state is updated in place.
struct ScanDeltaStepArgs {
  Tensor q_BHK, k_BHK, v_BGV;
  Tensor g_BG, g_BGK;  // at most one; both undefined: no decay
  Tensor beta_BG;
  Tensor state_BGKV;
  double scale = 1;
  Tensor o_BGV;
};

LT2_KERNEL(ScanDeltaForward, ScanDeltaForwardArgs)
LT2_KERNEL(ScanDeltaBackward, ScanDeltaBackwardArgs)
LT2_KERNEL(ScanDeltaStep, ScanDeltaStepArgs)

struct ScanDeltaInputs {
  Var q_NHK, k_NHK, v_NGV;
  Var g_NG = {}, g_NGK = {};  // at most one
  Var beta_NG;
  Var initial_state_DGKV;  // optional; D = documents.capacity(), or 1 (scan.h)
};
// Differentiable in every input, through both outputs. The outputs and what the backward needs
// survive Recompute. With `link`, which must outlive Backward, the tokens are a part of a longer
// row: there is no initial state then, and no final one; `meanwhile` is done while states are under
// way. Without one it is done after the scan.
ScanOutputs ScanDelta(Tape& tape, const ScanDeltaInputs& in, double scale,
                      const Documents& documents, FinalStates final_states,
                      StateLink* link = nullptr, const Meanwhile& meanwhile = Nothing);

}  // namespace lt2
