// Gated DeltaNet (arXiv 2412.06464), in the form of flash-linear-attention's layer.
//
//   q, k, v = silu(conv4(W u));  q, k normed to length 1 per head
//   β = σ(W_b u),  g = −exp(A_log) softplus(W_a u + dt_bias)
//   S_t = (I − β_t k_t k_tᵀ) e^{g_t} S_{t−1} + β_t k_t v_tᵀ,  o_t = d_k^{−1/2} S_tᵀ q_t
//   y = W_o (RMSNorm_{d_v}(o) ⊙ silu(W_g u))
#pragma once

#include "core/config.h"
#include "core/param_set.h"
#include "model/config.h"
#include "model/mixer.h"

namespace lt2 {

class GatedDeltaNet : public Mixer {
 public:
  struct Options {
    int64_t width;
    int64_t heads;     // of queries and keys
    int64_t v_heads;   // of values: a multiple of heads
    int64_t head_dim;  // d_k
    int64_t v_dim;     // d_v
    bool conv, gate, negative_eigenvalues;
    double norm_eps;
  };
  // [model.gdn]: heads (model.heads), v_heads (heads), head_dim (int(0.75 · width) / heads),
  // expand_v = 2, conv = true, gate = true, allow_neg_eigval = false, norm_eps = 1e-5.
  static Options ReadOptions(const ModelConfig& config, const ConfigTable& table);
  static ForeignTable ForeignNames();

  GatedDeltaNet(const Options& options, const MixerSite& site);
  MixerOutput Forward(Tape& tape, const Var& x_ND, const MixerContext& context) override;
  Tensor Step(Stream& stream, const Tensor& x_BD, MixerState& state,
              const StepContext& context) override;
  std::vector<StateEntry> StateSpec(int64_t sequences, int64_t capacity,
                                    DType dtype) const override;
  double FlopsPerToken(int64_t sequence) const override;
  SequenceStrategy strategy() const override { return SequenceStrategy::kScan; }

 private:
  int64_t key_width() const { return options_.heads * options_.head_dim; }
  int64_t value_width() const { return options_.v_heads * options_.v_dim; }
  // β and g of tokens [N, v_heads].
  Var Beta(Tape& tape, const Var& x_ND);
  Var Decay(Tape& tape, const Var& x_ND);
  // From the scan's output [N, v_heads, v_dim] to the layer's.
  Var Output(Tape& tape, const Var& o_NGV, const Var& x_ND);

  const Options options_;
  const double scale_;
  Param &q_proj_, &k_proj_, &v_proj_, &a_proj_, &b_proj_, &o_proj_;
  Param *g_proj_ = nullptr, *q_conv_ = nullptr, *k_conv_ = nullptr, *v_conv_ = nullptr;
  Param &A_log_, &dt_bias_, &o_norm_;
};

}  // namespace lt2
