// The matrix memory of xLSTM (Beck et al.: "xLSTM: Extended Long Short-Term Memory", 2024): a state
// with an exponential input gate and a sigmoid forget gate, and the sum of its keys to divide by.
//
//   m_t = max(log σ(f_t) + m_{t-1}, i_t)
//   S_t = exp(log σ(f_t) + m_{t-1} - m_t) S_{t-1} + exp(i_t - m_t) k_t [v_t, 1]^T
//   [num_t, den_t] = scale S_t^T q_t
//   o_t = num_t / max(|den_t|, exp(-m_t))
//
// The largest log-weight m keeps every exponent at most 0 and cancels out of o: in the frame m = 0
// the denominator is max(|den|, 1). A state is [K, V + 1], the last column the normaliser, and its
// m; two states with the same exp(m) S are the same. Gradients of a state are those of S with m
// held fixed, which is exact wherever the state goes on to an o.
//
// Shapes: N tokens of D documents, H heads, key width K, value width V, W = V + 1, C chunks of at
// most kChunk tokens. A bf16 run has gates, den, m and states in float, but for the chunks' states,
// which are saved as bf16.
#pragma once

#include "core/tape.h"
#include "kernels/documents.h"
#include "kernels/kernel.h"
#include "kernels/linked_scan.h"
#include "kernels/scan.h"

namespace lt2 {

struct ScanMlstmForwardArgs {
  Tensor q_NHK, k_NHK, v_NHV, i_NH, f_NH;
  Tensor initial_DHKW, initial_max_DH;  // undefined: zero
  Documents documents;
  double scale = 1;
  Tensor o_NHV;                     // undefined: not wanted, nor den
  Tensor final_DHKW, final_max_DH;  // undefined: not wanted; zero for documents that are not there
  // For the backward, undefined where there is none: den_t, and the state each chunk begins with.
  Tensor den_NH, states_CHKW, maxes_CH;
};

struct ScanMlstmBackwardArgs {
  Tensor q_NHK, k_NHK, v_NHV, i_NH, f_NH;
  Tensor initial_DHKW, initial_max_DH;
  Documents documents;
  double scale = 1;
  Tensor o_NHV, den_NH, states_CHKW, maxes_CH;  // the forward's
  Tensor do_NHV, dfinal_DHKW;                   // undefined: zero
  Tensor dstates_CHKW;                          // working memory, of the GPU alone
  GradInto dq_NHK, dk_NHK, dv_NHV, di_NH, df_NH, dinitial_DHKW;
};

// One token for each of B sequences; the state is updated in place. Zeros are an empty state.
struct ScanMlstmStepArgs {
  Tensor q_BHK, k_BHK, v_BHV, i_BH, f_BH;
  Tensor state_BHKW, max_BH;
  double scale = 1;
  Tensor o_BHV;
};

LT2_KERNEL(ScanMlstmForward, ScanMlstmForwardArgs)
LT2_KERNEL(ScanMlstmBackward, ScanMlstmBackwardArgs)
LT2_KERNEL(ScanMlstmStep, ScanMlstmStepArgs)

struct ScanMlstmInputs {
  Var q_NHK, k_NHK, v_NHV;
  Var i_NH, f_NH;          // before the exponential and the sigmoid
  Var initial_state_DHKW;  // optional, with its m; D = documents.capacity(), or 1 (scan.h)
  Tensor initial_max_DH = {};
};
struct ScanMlstmOutputs {
  Var o_NHV;
  Var final_state_DHKW;  // undefined, with its m, unless wanted
  Tensor final_max_DH;
};
// Differentiable in every input but the initial m, through o and the final state. The outputs and
// what the backward needs survive Recompute. `link` and `meanwhile`: as for ScanDelta.
ScanMlstmOutputs ScanMlstm(Tape& tape, const ScanMlstmInputs& in, double scale,
                           const Documents& documents, FinalStates final_states,
                           StateLink* link = nullptr, const Meanwhile& meanwhile = Nothing);

}  // namespace lt2
