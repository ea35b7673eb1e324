// Kimi delta attention ("Kimi Linear", 2025), in the form of flash-linear-attention's layer.
//
//   q, k, v = silu(conv4(W u));  q, k normed to length 1 per head;  β = σ(W_b u)
//   g = −exp(A_log) softplus(W_f2 W_f1 u + dt_bias), one per value head and key channel
//   S_t = (I − β_t k_t k_tᵀ) diag(e^{g_t}) S_{t−1} + β_t k_t v_tᵀ,  o_t = d_k^{−1/2} S_tᵀ q_t
//   y = W_o (RMSNorm_{d_v}(o) ⊙ σ(W_g2 W_g1 u + b_g));  W_f1 and W_g1 have d_v rows
#pragma once

#include "model/mixers/common/delta_mixer.h"

namespace lt2 {

class KimiDeltaAttention : public DeltaMixer {
 public:
  // [model.kda]: heads (model.heads), v_heads (heads), head_dim (width / heads), expand_v = 1,
  // conv = true, gate_bias = true, allow_neg_eigval = false, norm_eps = 1e-5.
  struct Options : DeltaMixer::Options {
    bool gate_bias;  // b_g
  };
  static Options ReadOptions(const ModelConfig& config, const ConfigTable& table);
  static ForeignTable ForeignNames();

  KimiDeltaAttention(const Options& options, const MixerSite& site);

 private:
  LogDecay Decay(Tape& tape, const Var& x_ND) override;
  Var GatedOutput(Tape& tape, const Var& o_NGV, const Var& x_ND) override;
  double GateFlops() const override;

  Param &f_down_, &f_up_, &g_down_, &g_up_;
  Param &A_log_, &dt_bias_;
  Param* g_bias_ = nullptr;
};

}  // namespace lt2
