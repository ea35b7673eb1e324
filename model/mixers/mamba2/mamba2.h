// Mamba2 (arXiv 2405.21060), in the form of flash-linear-attention's layer.
//
//   x, B, C = silu(conv4(W u) + b);  z, dt = W u
//   dt = softplus(dt + dt_bias),  S_t = e^{−exp(A_log) dt_t} S_{t−1} + dt_t B_t x_tᵀ
//   o_t = S_tᵀ C_t + D x_t
//   y = W_o RMSNorm(o ⊙ silu(z)), over the channels of each group of heads
//
// The heads of a group share its B and C. At first exp(A_log) is uniform in [1, 16) and
// softplus(dt_bias) log-uniform in [0.001, 0.1), as in the papers' code, D = 1, and the filters are
// convolved.h's. Left out: limits of dt, and a norm before the gate or none.
#pragma once

#include "model/config.h"
#include "model/mixers/common/convolved.h"

namespace lt2 {

class Mamba2 : public RecurrentMixer {
 public:
  struct Options {
    int64_t width, heads, groups;
    int64_t head_dim;   // channels of x, each head
    int64_t state_dim;  // rows of S
    double norm_eps;
  };
  // [model.mamba2]: heads (model.heads), expand = 2 (width of x over the model's), state_dim = 64,
  // groups = 1, norm_eps = 1e-5.
  static Options ReadOptions(const ModelConfig& config, const ConfigTable& table);
  static ForeignTable ForeignNames();
  static std::vector<HeadCount> HeadCounts(const Options& options) {
    return {{"heads", options.heads}, {"groups", options.groups, /*shared=*/true}};
  }
  static std::vector<SizeLimit> GpuLimits(const Options& options, const RunSizes& run);

  Mamba2(const Options& options, const MixerSite& site);
  std::vector<StateEntry> StateSpec(int64_t sequences, int64_t capacity,
                                    DType dtype) const override;
  double FlopsPerToken(int64_t sequence) const override;

 protected:
  Var Mix(Tape& tape, const Var& x_ND, const RecurrentRun& run) override;

 private:
  int64_t inner() const { return options_.heads * options_.head_dim; }

  const Options options_;
  Param &z_proj_, &dt_proj_;
  const Convolved x_, B_, C_;
  Param &A_log_, &D_, &dt_bias_, &o_norm_, &o_proj_;
};

}  // namespace lt2
