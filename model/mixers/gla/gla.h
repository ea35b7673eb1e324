// Gated linear attention (arXiv 2312.06635), in the form of flash-linear-attention's layer.
//
//   g = log σ(W_2 W_1 u + b_2) / τ per key channel
//   S_t = diag(e^{g_t}) S_{t−1} + k_t v_tᵀ,  o_t = d_k^{−1/2} S_tᵀ q_t
//   y = W_o (RMSNorm_{d_v}(o) ⊙ silu(W_g u))
//
// q, k, v behind silu(conv4(·)) with `conv`; a head of k has one gate, which its query heads share.
// Left out: activations of q and k, a lower bound of g, and an output without gate.
#pragma once

#include "model/mixers/common/additive_mixer.h"

namespace lt2 {

class GatedLinearAttention : public AdditiveMixer {
 public:
  struct Options : AdditiveMixer::Options {
    int64_t gate_rank;    // rows of W_1
    double gate_divisor;  // τ
  };
  // [model.gla]: heads (model.heads), kv_heads (heads), expand_k = 0.5, expand_v = 1, conv = false,
  // gate_rank = 16, gate_divisor = 16, norm_eps = 1e-5.
  static Options ReadOptions(const ModelConfig& config, const ConfigTable& table);
  static ForeignTable ForeignNames();

  GatedLinearAttention(const Options& options, const MixerSite& site);

 protected:
  Var Mix(Tape& tape, const Var& x_ND, const RecurrentRun& run) override;
  double MoreFlops() const override;

 private:
  const double gate_divisor_;
  Param &g_proj_, &gate_down_, &gate_up_, &gate_bias_;
};

}  // namespace lt2
