// Gated DeltaNet (arXiv 2412.06464), in the form of flash-linear-attention's layer.
//
//   q, k, v = silu(conv4(W u));  q, k normed to length 1 per head
//   β = σ(W_b u),  g = −exp(A_log) softplus(W_a u + dt_bias)
//   S_t = (I − β_t k_t k_tᵀ) e^{g_t} S_{t−1} + β_t k_t v_tᵀ,  o_t = d_k^{−1/2} S_tᵀ q_t
//   y = W_o (RMSNorm_{d_v}(o) ⊙ silu(W_g u))
//
// At first exp(A_log) is uniform in [0.01, 16), which keeps that library's [0, 16) from a head that
// never forgets, and softplus(dt_bias) log-uniform in [0.001, 0.1); the filters are convolved.h's.
#pragma once

#include "model/mixers/common/delta_mixer.h"

namespace lt2 {

class GatedDeltaNet : public DeltaMixer {
 public:
  // [model.gdn]: heads (model.heads), v_heads (heads), head_dim (int(0.75 · width) / heads),
  // expand_v = 2, conv = true, gate = true, allow_neg_eigval = false, norm_eps = 1e-5.
  static Options ReadOptions(const ModelConfig& config, const ConfigTable& table);
  static ForeignTable ForeignNames();

  GatedDeltaNet(const Options& options, const MixerSite& site);

 private:
  LogDecay Decay(Tape& tape, const Var& x_ND, const Var& a_NG) override;
  Param* DecayProjection() override { return &a_proj_; }
  Var OutputGate(Tape& tape, const Var& x_ND) override;
  double GateFlops() const override;

  Param &a_proj_, &A_log_, &dt_bias_;
  Param* g_proj_ = nullptr;
};

}  // namespace lt2
