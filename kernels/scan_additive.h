// The additive state: linear attention and its decayed kin.
//
//   S_t = exp(g_t) S_{t-1} + k_t v_t^T
//   o_t = scale S_t^T q_t
//
// Without decay this is linear attention (Katharopoulos et al., 2020), with one constant log-decay
// per head retention (Sun et al.: "Retentive Network", 2023), with a log-decay g <= 0 per token and
// head simple GLA and the state space duality of Mamba2 (Dao, Gu, 2024); with one per key channel
// as well, exp(g_t) a diagonal matrix on the left, gated linear attention (Yang et al.: "Gated
// Linear Attention Transformers with Hardware-Efficient Training", 2024), of which HGRN2 (Qin et
// al., 2024) is the case k = 1 - exp(g).
//
// Shapes: N tokens of D documents, H key heads, G value heads (a multiple of H: key head h serves
// value heads h·G/H … (h+1)·G/H - 1), key width K, value width V, C chunks of at most kChunk
// tokens. A bf16 run has decays and states in float, but for the chunks' states, which are saved as
// bf16.
#pragma once

#include "core/tape.h"
#include "kernels/documents.h"
#include "kernels/kernel.h"
#include "kernels/linked_scan.h"
#include "kernels/scan.h"

namespace lt2 {

struct ScanAdditiveForwardArgs {
  Tensor q_NHK, k_NHK, v_NGV;
  Tensor g_NG, g_NGK, log_gamma_G;  // at most one; the last is constant; all undefined: no decay
  Tensor initial_DGKV;              // undefined: zero
  Documents documents;
  double scale = 1;
  Tensor o_NGV;       // undefined: not wanted
  Tensor final_DGKV;  // undefined: not wanted; zero for documents that are not there
  // The state each chunk begins with, for the backward; undefined where there is none.
  Tensor states_CGKV;
};

struct ScanAdditiveBackwardArgs {
  Tensor q_NHK, k_NHK, v_NGV, g_NG, g_NGK, log_gamma_G, initial_DGKV;
  Documents documents;
  double scale = 1;
  Tensor states_CGKV;          // saved by the forward
  Tensor do_NGV, dfinal_DGKV;  // undefined: zero
  Tensor dstates_CGKV;         // working memory
  GradInto dq_NHK, dk_NHK, dv_NGV, dg_NG, dg_NGK, dinitial_DGKV;
};

// One token for each of B sequences; the state is updated in place.
struct ScanAdditiveStepArgs {
  Tensor q_BHK, k_BHK, v_BGV;
  Tensor g_BG, g_BGK, log_gamma_G;  // as above
  Tensor state_BGKV;
  double scale = 1;
  Tensor o_BGV;
};

LT2_KERNEL(ScanAdditiveForward, ScanAdditiveForwardArgs)
LT2_KERNEL(ScanAdditiveBackward, ScanAdditiveBackwardArgs)
LT2_KERNEL(ScanAdditiveStep, ScanAdditiveStepArgs)

struct ScanAdditiveInputs {
  Var q_NHK, k_NHK, v_NGV;
  Var g_NG = {}, g_NGK = {};  // at most one decay
  Tensor log_gamma_G = {};
  Var initial_state_DGKV = {};  // optional; D = documents.capacity(), or 1 (scan.h)
};
// Differentiable in every Var, through both outputs. The outputs and what the backward needs
// survive Recompute. `link` and `meanwhile`: as for ScanDelta.
ScanOutputs ScanAdditive(Tape& tape, const ScanAdditiveInputs& in, double scale,
                         const Documents& documents, FinalStates final_states,
                         StateLink* link = nullptr, const Meanwhile& meanwhile = Nothing);

}  // namespace lt2
