// Kimi delta attention ("Kimi Linear", 2025), in the form of flash-linear-attention's layer.
//
//   q, k, v = silu(conv4(W u));  q, k normed to length 1 per head;  β = σ(W_b u)
//   g = −exp(A_log) softplus(W_f2 W_f1 u + dt_bias), one per value head and key channel
//   S_t = (I − β_t k_t k_tᵀ) diag(e^{g_t}) S_{t−1} + β_t k_t v_tᵀ,  o_t = d_k^{−1/2} S_tᵀ q_t
//   y = W_o (RMSNorm_{d_v}(o) ⊙ σ(W_g2 W_g1 u + b_g));  W_f1 and W_g1 have d_v rows
//
// At first exp(A_log) is uniform in [1, 16) and softplus(dt_bias) log-uniform in [0.001, 0.1); the
// filters are convolved.h's. The students of arXiv 2504.14366 have one matrix W_g for the gate
// (full_gate) and dt_bias = 0 (dt_init = "zeros"). Left out: that their released code adds the gate
// instead of multiplying by it, and the bounded ("safe") gate, another function of its logits.
#pragma once

#include "model/mixers/common/delta_mixer.h"

namespace lt2 {

class KimiDeltaAttention : public DeltaMixer {
 public:
  struct Options : DeltaMixer::Options {
    bool gate_bias;  // b_g
    bool full_gate;  // W_g for W_g2 W_g1
    bool zero_dt;    // dt_bias starts at 0
  };
  // [model.kda]: heads (model.heads), v_heads (heads), head_dim (width / heads), expand_v = 1,
  // conv = true, gate_bias = true, full_gate = false, dt_init = "log-uniform" ("zeros"),
  // allow_neg_eigval = false, norm_eps = 1e-5.
  static Options ReadOptions(const ModelConfig& config, const ConfigTable& table);
  static ForeignTable ForeignNames();

  KimiDeltaAttention(const Options& options, const MixerSite& site);

 private:
  LogDecay Decay(Tape& tape, const Var& x_ND, const Var& a_NG) override;
  Var OutputGate(Tape& tape, const Var& x_ND) override;
  Var GatedOutput(Tape& tape, const Var& o_NGV, const Var& gate_NC) override;
  double GateFlops() const override;

  Param &f_down_, &f_up_, &A_log_, &dt_bias_;
  Param *g_down_ = nullptr, *g_up_ = nullptr;  // W_g1 and W_g2, or W_g alone
  Param* g_bias_ = nullptr;
};

}  // namespace lt2
