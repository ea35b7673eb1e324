// RetNet's multi-scale retention (arXiv 2307.08621), in the form of flash-linear-attention's layer.
//
//   q, k = RoPE(W u)
//   S_t = γ_h S_{t−1} + k_t v_tᵀ,  o_t = d_k^{−1/2} S_tᵀ q_t,  γ_h = 1 − 2^{−5−h}
//   y = W_o (RMSNorm_{d_v}(o) ⊙ silu(W_g u))
//
// q, k, v behind silu(conv4(·)) with `conv`, before the rotation, which is the layer's own: that of
// full attention ([model]) does not touch it. Left out: activations of q and k, an output without
// gate, and the paper's xPos and normalisers.
#pragma once

#include "kernels/rope.h"
#include "model/mixers/common/additive_mixer.h"
#include "model/mixers/common/constant.h"

namespace lt2 {

class RetNet : public AdditiveMixer {
 public:
  struct Options : AdditiveMixer::Options {
    RopeOptions rope;
  };
  // [model.retnet]: heads (model.heads), kv_heads (heads), expand_k = 1, expand_v = 2,
  // conv = false, rope_theta = 10000, rope_style = "half" ("interleaved"), norm_eps = 1e-5.
  static Options ReadOptions(const ModelConfig& config, const ConfigTable& table);
  static ForeignTable ForeignNames();

  RetNet(const Options& options, const MixerSite& site);

 protected:
  Var Mix(Tape& tape, const Var& x_ND, const RecurrentRun& run) override;
  double MoreFlops() const override;

 private:
  const RopeOptions rope_;
  Constant log_gamma_;  // per head
  Param& g_proj_;
};

}  // namespace lt2
