// HGRN2 (arXiv 2404.07904), in the form of flash-linear-attention's layer.
//
//   e^g = l + (1 − l) σ(W_f u) per key channel,  k = 1 − e^g,  q = silu(W_q u),  v = W_i u
//   S_t = diag(e^{g_t}) S_{t−1} + k_t v_tᵀ,  o_t = d_k^{−1/2} S_tᵀ q_t
//   y = W_o RMSNorm(o), over the whole width
//
// With `conv` the projections W_q, W_f and W_i go through conv4, without an activation of its own.
// The lower bound l of layer i of L is i / L; with learn_bounds it comes from one table that all
// layers share (kernels/hgrn_gate.h) and that starts there.
#pragma once

#include "core/param_set.h"
#include "model/config.h"
#include "model/mixers/common/constant.h"
#include "model/mixers/common/convolved.h"

namespace lt2 {

class Hgrn2 : public RecurrentMixer {
 public:
  struct Options {
    int64_t width, heads;
    bool conv, learn_bounds;
    double norm_eps;
    int64_t head_dim() const { return width / heads; }
  };
  // [model.hgrn2]: expand_ratio = width / model.heads (d_k; there are width / d_k heads),
  // conv = false, learn_bounds = false, norm_eps = 1e-5.
  static Options ReadOptions(const ModelConfig& config, const ConfigTable& table);
  static ForeignTable ForeignNames();
  static std::vector<HeadCount> HeadCounts(const Options& options) {
    return {{"heads", options.heads}};
  }
  static std::vector<SizeLimit> GpuLimits(const Options& options, const RunSizes& run);

  Hgrn2(const Options& options, const MixerSite& site);
  std::vector<StateEntry> StateSpec(int64_t sequences, int64_t capacity,
                                    DType dtype) const override;
  double FlopsPerToken(int64_t sequence) const override;

 protected:
  Var Mix(Tape& tape, const Var& x_ND, const RecurrentRun& run) override;

 private:
  // l of this layer, of the channels of f.
  Var Bound(Tape& tape, const Tensor& f_NC);

  const Options options_;
  const int64_t layer_;
  const Convolved q_, f_, i_;
  Param &o_proj_, &o_norm_;
  Constant bound_;           // where nothing learns it: the same for all channels
  Param* bounds_ = nullptr;  // of all layers
};

}  // namespace lt2
