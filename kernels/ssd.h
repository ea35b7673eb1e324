// The state space of Mamba2 (Dao, Gu: "Transformers are SSMs", 2024): per head
//
//   dt_t = softplus(a_t + dt_bias)
//   S_t  = exp(-exp(A_log) dt_t) S_{t-1} + dt_t B_t x_t^T
//   y_t  = S_t^T C_t + D x_t
//
// It is the additive scan with q = C, k = B, v = dt x, and a gate around it.
#pragma once

#include "kernels/decay_gate.h"
#include "kernels/head_scale.h"
#include "kernels/scan_additive.h"

namespace lt2 {

struct SsdInputs {
  Var x_NHP;                    // H heads of width P
  Var a_NH;                     // step sizes before their bias
  Var B_NGK, C_NGK;             // G groups: head h reads group h·G/H
  Var initial_state_DHKP = {};  // optional
};
struct SsdParams {
  Param &A_log_H, &D_H, &dt_bias_H;
};
ScanOutputs Ssd(Tape& tape, const SsdInputs& in, const SsdParams& params,
                const Documents& documents, FinalStates final_states, StateLink* link = nullptr,
                const Meanwhile& meanwhile = Nothing);

// One token for each of B sequences; state_BHKP is updated in place. Nothing is recorded.
Var SsdStep(Tape& tape, const SsdInputs& in, const SsdParams& params, const Tensor& state_BHKP);

}  // namespace lt2
