// DeltaNet (arXiv 2406.06484), in the form of flash-linear-attention's layer.
//
//   q, k, v = silu(conv4(W u));  q, k normed to length 1 per head;  β = σ(W_b u)
//   S_t = (I − β_t k_t k_tᵀ) S_{t−1} + β_t k_t v_tᵀ,  o_t = d_k^{−1/2} S_tᵀ q_t
//   y = W_o RMSNorm_{d_v}(o), the norm times silu(W_g u) with a gate
//
// Left out: other activations and norms of q and k, and a rule without β.
#pragma once

#include "model/mixers/common/delta_mixer.h"

namespace lt2 {

class DeltaNet : public DeltaMixer {
 public:
  // [model.deltanet]: heads (model.heads), v_heads (heads), expand_k = 1 and expand_v = 1 (times
  // width / heads: d_k and d_v), conv = true, gate = false, allow_neg_eigval = false, norm_eps =
  // 1e-5.
  static Options ReadOptions(const ModelConfig& config, const ConfigTable& table);
  static ForeignTable ForeignNames();
  static std::vector<SizeLimit> GpuLimits(const Options& options, const RunSizes& run);

  DeltaNet(const Options& options, const MixerSite& site);

 private:
  LogDecay Decay(Tape&, const Var&, const Var&) override { return {}; }
  Var OutputGate(Tape& tape, const Var& x_ND) override;
  double GateFlops() const override;

  Param* g_proj_ = nullptr;
};

}  // namespace lt2
