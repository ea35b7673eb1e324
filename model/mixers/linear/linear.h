// Linear attention (arXiv 2006.16236) without the normaliser, in the form of
// flash-linear-attention's layer.
//
//   S_t = S_{t−1} + φ(k_t) v_tᵀ,  o_t = d_k^{−1/2} S_tᵀ φ(q_t)
//   y = W_o RMSNorm_{d_v}(o)
//
// φ per head, with weights shared by heads but not by q and k: the identity, elu(x) + 1, or the
// Hadamard map (W_1 x + c_1) ⊙ (W_2 x + c_2).
#pragma once

#include "core/param_set.h"
#include "model/config.h"
#include "model/mixers/common/head_widths.h"
#include "model/mixers/common/recurrent_mixer.h"

namespace lt2 {

class LinearAttention : public RecurrentMixer {
 public:
  enum class FeatureMap { kIdentity, kElu, kHadamard };
  struct Options {
    int64_t width;
    HeadWidths head;
    FeatureMap feature_map;
    bool norm;
    double norm_eps;
  };
  // [model.linear]: heads (model.heads), expand_k = 1, expand_v = 1, feature_map = "hadamard"
  // ("identity", "elu"), norm = true, norm_eps = 1e-5.
  static Options ReadOptions(const ModelConfig& config, const ConfigTable& table);
  static ForeignTable ForeignNames();

  LinearAttention(const Options& options, const MixerSite& site);
  std::vector<StateEntry> StateSpec(int64_t sequences, int64_t capacity,
                                    DType dtype) const override;
  double FlopsPerToken(int64_t sequence) const override;

 protected:
  Var Mix(Tape& tape, const Var& x_ND, const RecurrentRun& run) override;

 private:
  struct Hadamard {
    Param *w1 = nullptr, *c1 = nullptr, *w2 = nullptr, *c2 = nullptr;
  };
  Hadamard AddHadamard(const ParamScope& scope) const;
  // x [N, H, K] -> φ(x).
  Var Features(Tape& tape, const Var& x_NHK, const Hadamard& map) const;

  const Options options_;
  Param &q_proj_, &k_proj_, &v_proj_, &o_proj_;
  Param* o_norm_ = nullptr;
  Hadamard q_map_, k_map_;
};

}  // namespace lt2
