// The mLSTM of xLSTM (arXiv 2405.04517), as the block of xLSTM-7B (arXiv 2503.13427) has it: no
// convolution, gates bounded softly.
//
//   q, k, v = W u;  cap(x) = c tanh(x / c)
//   ĩ = cap(W_i u + b_i),  f̃ = cap(W_f u + b_f)
//   S_t = σ(f̃_t) S_{t−1} + e^{ĩ_t} k_t [v_t, 1]ᵀ,  [num, den] = d_k^{−1/2} Sᵀ q
//   y = W_out (LayerNorm_{d_v}(num / max(|den|, 1)) ⊙ σ(W_o u))
//
// Heads of k and v may each serve several of q (kv_heads). Left out: the older block (projections
// up and down around a convolution), and a rotation of q and k.
//
// `init` says how it starts. All normals are cut at 3 deviations (model/init.h).
//   "large": as xLSTM-7B. q, k, v, W_o with variance 2 / (5 d), W_out with deviation 2 / (L √d) in
//     a model of L layers; W_i = W_f = 0, b_i = −10, b_f from 3 to 6 over the heads.
//   "linearize": as the released code of arXiv 2504.14366 starts a transformer's student, whose
//     projections the teacher's replace. W_i and W_f a tenth of Xavier's uniform, b_i = −ln 2,
//     b_f = 0.
//   "linearize-as-meant": the same with b_i = ln 2, b_f = −ln 2. That code sets b_i twice, to ln 2
//     and then −ln 2; for its students of Gemma the second is b_f.
#pragma once

#include "model/config.h"
#include "model/mixers/common/recurrent_mixer.h"

namespace lt2 {

class Mlstm : public RecurrentMixer {
 public:
  enum class Start { kLarge, kLinearize, kLinearizeAsMeant };
  struct Options {
    int64_t width;
    int64_t heads, kv_heads;
    int64_t head_dim;  // d_k
    int64_t v_dim;     // d_v
    double soft_cap;   // c
    double norm_eps;
    Start start;
  };
  // [model.mlstm]: heads (model.heads), kv_heads (heads), qk_factor = 0.5, v_factor = 1 (of the
  // width, all heads), soft_cap = 15, norm_eps = 1e-6, init = "large".
  static Options ReadOptions(const ModelConfig& config, const ConfigTable& table);
  static ForeignTable ForeignNames();
  static std::vector<HeadCount> HeadCounts(const Options& options);
  static std::vector<SizeLimit> GpuLimits(const Options& options, const RunSizes& run);

  Mlstm(const Options& options, const MixerSite& site);
  std::vector<StateEntry> StateSpec(int64_t sequences, int64_t capacity,
                                    DType dtype) const override;
  double FlopsPerToken(int64_t sequence) const override;

 protected:
  Var Mix(Tape& tape, const Var& x_ND, const RecurrentRun& run) override;

 private:
  struct Gate {
    Param &weight, &bias;
  };
  int64_t value_width() const { return options_.heads * options_.v_dim; }
  Param& AddProjection(const MixerSite& site, const std::string& name, int64_t heads,
                       int64_t channels) const;
  Gate AddGate(const MixerSite& site, const std::string& name, const Init& bias) const;

  const Options options_;
  Param &q_, &k_, &v_, &o_gate_;
  const Gate i_, f_;
  Param &norm_, &out_;
};

}  // namespace lt2
