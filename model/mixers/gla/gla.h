// Gated linear attention (arXiv 2312.06635), in the form of flash-linear-attention's layer.
//
//   g = log σ(W_2 W_1 u + b_2) / τ per key channel
//   S_t = diag(e^{g_t}) S_{t−1} + k_t v_tᵀ,  o_t = d_k^{−1/2} S_tᵀ q_t
//   y = W_o (RMSNorm_{d_v}(o) ⊙ silu(W_g u))
#pragma once

#include "core/param_set.h"
#include "model/config.h"
#include "model/mixers/common/head_widths.h"
#include "model/mixers/common/recurrent_mixer.h"

namespace lt2 {

class GatedLinearAttention : public RecurrentMixer {
 public:
  struct Options {
    int64_t width;
    HeadWidths head;
    int64_t gate_rank;    // rows of W_1
    double gate_divisor;  // τ
    double norm_eps;
  };
  // [model.gla]: heads (model.heads), expand_k = 0.5, expand_v = 1, gate_rank = 16,
  // gate_divisor = 16, norm_eps = 1e-5.
  static Options ReadOptions(const ModelConfig& config, const ConfigTable& table);
  static ForeignTable ForeignNames();

  GatedLinearAttention(const Options& options, const MixerSite& site);
  std::vector<StateEntry> StateSpec(int64_t sequences, int64_t capacity,
                                    DType dtype) const override;
  double FlopsPerToken(int64_t sequence) const override;

 protected:
  Var Mix(Tape& tape, const Var& x_ND, const RecurrentRun& run) override;

 private:
  int64_t keys() const { return options_.head.heads * options_.head.k; }
  int64_t values() const { return options_.head.heads * options_.head.v; }

  const Options options_;
  Param &q_proj_, &k_proj_, &v_proj_, &g_proj_, &o_proj_;
  Param &gate_down_, &gate_up_, &gate_bias_, &o_norm_;
};

}  // namespace lt2
