// The mLSTM of xLSTM (arXiv 2405.04517), as the block of xLSTM-7B (arXiv 2503.13427) has it: no
// convolution, gates bounded softly.
//
//   q, k, v = W u;  cap(x) = c tanh(x / c)
//   ĩ = cap(W_i u + b_i),  f̃ = cap(W_f u + b_f)
//   S_t = σ(f̃_t) S_{t−1} + e^{ĩ_t} k_t [v_t, 1]ᵀ,  [num, den] = d_k^{−1/2} Sᵀ q
//   y = W_out (LayerNorm_{d_v}(num / max(|den|, 1)) ⊙ σ(W_o u))
#pragma once

#include "core/config.h"
#include "core/param_set.h"
#include "model/config.h"
#include "model/mixer.h"

namespace lt2 {

class Mlstm : public Mixer {
 public:
  struct Options {
    int64_t width;
    int64_t heads;
    int64_t head_dim;  // d_k
    int64_t v_dim;     // d_v
    double soft_cap;   // c
    double norm_eps;
    // false: gates that depend on their biases alone at first, b_i = −10, b_f from 3 to 6 over the
    // heads. true: as a student of a transformer starts (arXiv 2504.14366), gate weights a tenth of
    // Xavier's and b_i = −ln 2; b_f as before.
    bool linearize;
  };
  // [model.mlstm]: heads (model.heads), qk_factor = 0.5, v_factor = 1 (of the width, all heads),
  // soft_cap = 15, norm_eps = 1e-6, init = "large" or "linearize".
  static Options ReadOptions(const ModelConfig& config, const ConfigTable& table);
  static ForeignTable ForeignNames();

  Mlstm(const Options& options, const MixerSite& site);
  MixerOutput Forward(Tape& tape, const Var& x_ND, const MixerContext& context) override;
  Tensor Step(Stream& stream, const Tensor& x_BD, MixerState& state,
              const StepContext& context) override;
  std::vector<StateEntry> StateSpec(int64_t sequences, int64_t capacity,
                                    DType dtype) const override;
  double FlopsPerToken(int64_t sequence) const override;
  SequenceStrategy strategy() const override { return SequenceStrategy::kScan; }

 private:
  struct Gate {
    Param &weight, &bias;
  };
  int64_t key_width() const { return options_.heads * options_.head_dim; }
  int64_t value_width() const { return options_.heads * options_.v_dim; }
  Gate MakeGate(const MixerSite& site, const std::string& name, const Init& bias) const;
  // ĩ or f̃ of tokens [N, heads].
  Var GateOf(Tape& tape, const Var& x_ND, const Gate& gate) const;
  // From the scan's output [N, heads, v_dim] to the layer's.
  Var Output(Tape& tape, const Var& o_NHV, const Var& x_ND) const;

  const Options options_;
  const double scale_;
  Param &q_, &k_, &v_, &o_gate_;
  const Gate i_, f_;
  Param &norm_, &out_;
};

}  // namespace lt2
