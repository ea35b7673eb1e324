// The additive state with one decay per head: linear attention and its decayed kin.
//
//   S_t = exp(g_t) S_{t-1} + k_t v_t^T
//   o_t = scale S_t^T q_t
//
// Without decay this is linear attention (Katharopoulos et al., 2020), with one constant log-decay
// per head retention (Sun et al.: "Retentive Network", 2023), with a log-decay g <= 0 per token
// and head simple GLA and the state space duality of Mamba2 (Dao, Gu, 2024).
//
// Shapes: N tokens of D documents, H key heads, G value heads (a multiple of H: key head h serves
// value heads h·G/H … (h+1)·G/H - 1), key width K, value width V, C chunks of at most kChunk
// tokens. scan_channel.h decays every key channel on its own.
#pragma once

#include "core/tape.h"
#include "kernels/documents.h"
#include "kernels/kernel.h"
#include "kernels/scan.h"

namespace lt2 {

struct ScanScalarForwardArgs {
  Tensor q_NHK, k_NHK, v_NGV;
  Tensor g_NG;          // undefined: the constant
  Tensor log_gamma_G;   // undefined: no decay
  Tensor initial_DGKV;  // undefined: zero
  Documents documents;
  double scale = 1;
  Tensor o_NGV;
  Tensor final_DGKV;  // undefined: not wanted; zero for documents that are not there
  Tensor
      states_CGKV;  // the state each chunk begins with, for the backward; undefined: there is none
};

struct ScanScalarBackwardArgs {
  Tensor q_NHK, k_NHK, v_NGV, g_NG, log_gamma_G, initial_DGKV;
  Documents documents;
  double scale = 1;
  Tensor states_CGKV;          // saved by the forward
  Tensor do_NGV, dfinal_DGKV;  // undefined: zero
  Tensor dstates_CGKV;         // working memory
  GradInto dq_NHK, dk_NHK, dv_NGV, dg_NG, dinitial_DGKV;
};

// One token for each of B sequences; the state is updated in place.
struct ScanScalarStepArgs {
  Tensor q_BHK, k_BHK, v_BGV;
  Tensor g_BG, log_gamma_G;  // as above
  Tensor state_BGKV;
  double scale = 1;
  Tensor o_BGV;
};

LT2_KERNEL(ScanScalarForward, ScanScalarForwardArgs)
LT2_KERNEL(ScanScalarBackward, ScanScalarBackwardArgs)
LT2_KERNEL(ScanScalarStep, ScanScalarStepArgs)

struct ScanScalarInputs {
  Var q_NHK, k_NHK, v_NGV;
  Var g_NG;                     // optional
  Tensor log_gamma_G = {};      // optional, instead of g
  Var initial_state_DGKV = {};  // optional; D = documents.capacity()
};
// Differentiable in every Var, through both outputs. The outputs and what the backward needs
// survive Recompute.
ScanOutputs ScanScalar(Tape& tape, const ScanScalarInputs& in, double scale,
                       const Documents& documents, bool want_final_state);

}  // namespace lt2
