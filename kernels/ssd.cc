#include "kernels/ssd.h"

namespace lt2 {

ScanOutputs Ssd(Tape& tape, const SsdInputs& in, const SsdParams& params,
                const Documents& documents, FinalStates final_states, StateLink* link,
                const Meanwhile& meanwhile) {
  const StepSizes step = TimeStep(tape, in.a_NH, params.A_log_H, params.dt_bias_H);
  ScanOutputs out = ScanAdditive(tape,
                                 {.q_NHK = in.C_NGK,
                                  .k_NHK = in.B_NGK,
                                  .v_NGV = HeadScale(tape, in.x_NHP, step.dt),
                                  .g_NG = step.g,
                                  .initial_state_DGKV = in.initial_state_DHKP},
                                 /*scale=*/1, documents, final_states, link, meanwhile);
  out.o_NGV = HeadSkip(tape, out.o_NGV, in.x_NHP, params.D_H);
  return out;
}

Var SsdStep(Tape& tape, const SsdInputs& in, const SsdParams& params, const Tensor& state_BHKP) {
  const StepSizes step = TimeStep(tape, in.a_NH, params.A_log_H, params.dt_bias_H);
  const Tensor& x = in.x_NHP.value;
  const Tensor o = Tensor::Empty(x.shape(), x.dtype(), x.device());
  ScanAdditiveStep(tape.stream(), {.q_BHK = in.C_NGK.value,
                                   .k_BHK = in.B_NGK.value,
                                   .v_BGV = HeadScale(tape, in.x_NHP, step.dt).value,
                                   .g_BG = step.g.value,
                                   .state_BGKV = state_BHKP,
                                   .o_BGV = o});
  return HeadSkip(tape, tape.Input(o), in.x_NHP, params.D_H);
}

}  // namespace lt2
