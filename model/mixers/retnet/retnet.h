// RetNet's multi-scale retention (arXiv 2307.08621), in the form of flash-linear-attention's layer.
//
//   q, k = RoPE(W u)
//   S_t = γ_h S_{t−1} + k_t v_tᵀ,  o_t = d_k^{−1/2} S_tᵀ q_t,  γ_h = 1 − 2^{−5−h}
//   y = W_o (RMSNorm_{d_v}(o) ⊙ silu(W_g u))
#pragma once

#include "core/param_set.h"
#include "kernels/rope.h"
#include "model/config.h"
#include "model/mixers/common/head_widths.h"
#include "model/mixers/common/recurrent_mixer.h"

namespace lt2 {

class RetNet : public RecurrentMixer {
 public:
  struct Options {
    int64_t width;
    HeadWidths head;
    RopeOptions rope;
    double norm_eps;
  };
  // [model.retnet]: heads (model.heads), expand_k = 1, expand_v = 2, norm_eps = 1e-5. Rotation as
  // full attention's (model.rope_theta, model.rope_style).
  static Options ReadOptions(const ModelConfig& config, const ConfigTable& table);
  static ForeignTable ForeignNames();

  RetNet(const Options& options, const MixerSite& site);
  std::vector<StateEntry> StateSpec(int64_t sequences, int64_t capacity,
                                    DType dtype) const override;
  double FlopsPerToken(int64_t sequence) const override;

 protected:
  Var Mix(Tape& tape, const Var& x_ND, const RecurrentRun& run) override;

 private:
  const Options options_;
  std::vector<double> log_gamma_;  // per head
  Param &q_proj_, &k_proj_, &v_proj_, &g_proj_, &o_proj_, &o_norm_;
};

}  // namespace lt2
