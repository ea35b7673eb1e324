// Linear attention (arXiv 2006.16236) without the normaliser, in the form of
// flash-linear-attention's layer.
//
//   S_t = S_{t−1} + φ(k_t) v_tᵀ,  o_t = d_k^{−1/2} S_tᵀ φ(q_t)
//   y = W_o RMSNorm_{d_v}(o)
//
// φ per head, with weights shared by heads but not by q and k: the identity, elu(x) + 1, or the
// Hadamard map (W_1 x + c_1) ⊙ (W_2 x + c_2). q, k, v behind silu(conv4(·)) with `conv`, which that
// library's layer has not but the students of arXiv 2504.14366 have. Left out: the normaliser, sums
// of q and k as norms, maps that q and k share, and the maps relu, hedgehog, t2r and dpfp.
#pragma once

#include "model/mixers/common/additive_mixer.h"

namespace lt2 {

class LinearAttention : public AdditiveMixer {
 public:
  enum class FeatureMap { kIdentity, kElu, kHadamard };
  struct Options : AdditiveMixer::Options {
    FeatureMap feature_map;
    bool norm;
  };
  // [model.linear]: heads (model.heads), kv_heads (heads), expand_k = 1, expand_v = 1,
  // feature_map = "hadamard" ("identity", "elu"), conv = false, norm = true, norm_eps = 1e-5.
  static Options ReadOptions(const ModelConfig& config, const ConfigTable& table);
  static ForeignTable ForeignNames();

  LinearAttention(const Options& options, const MixerSite& site);

 protected:
  Var Mix(Tape& tape, const Var& x_ND, const RecurrentRun& run) override;
  double MoreFlops() const override;

 private:
  struct Hadamard {
    Param *w1 = nullptr, *c1 = nullptr, *w2 = nullptr, *c2 = nullptr;
  };
  Hadamard AddHadamard(const ParamScope& scope) const;
  // x [N, H, K] -> φ(x).
  Var Features(Tape& tape, const Var& x_NHK, const Hadamard& map) const;

  const FeatureMap feature_map_;
  Hadamard q_map_, k_map_;
};

}  // namespace lt2
