// Mamba2 (arXiv 2405.21060), in the form of flash-linear-attention's layer.
//
//   x, B, C = silu(conv4(W u) + b);  z, dt = W u
//   dt = softplus(dt + dt_bias),  S_t = e^{−exp(A_log) dt_t} S_{t−1} + dt_t B_t x_tᵀ
//   o_t = S_tᵀ C_t + D x_t
//   y = W_o RMSNorm(o ⊙ silu(z)), over the channels of each group of heads
//
// The heads of a group share its B and C.
#pragma once

#include "core/param_set.h"
#include "model/config.h"
#include "model/mixers/common/recurrent_mixer.h"

namespace lt2 {

class Mamba2 : public RecurrentMixer {
 public:
  struct Options {
    int64_t width, heads, groups;
    int64_t inner;      // heads times their width
    int64_t state_dim;  // rows of S
    double norm_eps;
  };
  // [model.mamba2]: heads (model.heads), expand = 2 (inner width over model's), state_dim = 64,
  // groups = 1, norm_eps = 1e-5.
  static Options ReadOptions(const ModelConfig& config, const ConfigTable& table);
  static ForeignTable ForeignNames();

  Mamba2(const Options& options, const MixerSite& site);
  std::vector<StateEntry> StateSpec(int64_t sequences, int64_t capacity,
                                    DType dtype) const override;
  double FlopsPerToken(int64_t sequence) const override;

 protected:
  Var Mix(Tape& tape, const Var& x_ND, const RecurrentRun& run) override;

 private:
  int64_t grouped() const { return options_.groups * options_.state_dim; }
  struct Convolved {
    Convolved(const ParamScope& scope, const std::string& name, int64_t channels, int64_t width);
    Param &proj, &conv, &bias;
  };

  const Options options_;
  Param &z_proj_, &dt_proj_;
  const Convolved x_, B_, C_;
  Param &A_log_, &D_, &dt_bias_, &o_norm_, &o_proj_;
};

}  // namespace lt2
