// Causal softmax attention with rotary positions, grouped key-value heads, optional per-head
// RMSNorm of queries and keys, an optional sigmoid output gate, and a window that may differ from
// loop to loop: the mixers full and window are two defaults of it.
//
//   q = rope(W_q u), k = rope(W_k u), v = W_v u;  y = W_o (softmax(q kᵀ/√D) v ⊙ σ(W_g u))
//
// (LT2, arXiv 2605.20670; the gate starts at W_g = 0, so that it is 1/2.) A query sees the last
// `window` tokens of its document, itself included; all of them where the window is 0.
#pragma once

#include "core/config.h"
#include "core/param_set.h"
#include "kernels/attention.h"
#include "kernels/rope.h"
#include "model/config.h"
#include "model/mixer.h"

namespace lt2 {

class SoftmaxAttention : public Mixer {
 public:
  struct Options {
    int64_t width, heads, kv_heads, head_dim;
    bool gate, qk_norm;
    double norm_eps;
    std::vector<int64_t> windows;  // one for all loops, or one a loop; 0: all tokens
    RopeOptions rope;
  };
  static ForeignTable ForeignNames();
  static std::vector<HeadCount> HeadCounts(const Options& options);
  static std::vector<SizeLimit> GpuLimits(const Options& options, const RunSizes& run);

  SoftmaxAttention(const Options& options, const MixerSite& site);
  MixerOutput Forward(Tape& tape, const Var& x_ND, const MixerContext& context) override;
  Tensor Step(Stream& stream, const Tensor& x_BD, MixerState& state,
              const StepContext& context) override;
  std::vector<StateEntry> StateSpec(int64_t sequences, int64_t capacity,
                                    DType dtype) const override;
  double FlopsPerToken(int64_t sequence) const override;
  SequenceStrategy strategy() const override;

 protected:
  // qk_norm = false, window = the given one (an integer, or a list of one a loop); everything else
  // is in [model].
  static Options Read(const ModelConfig& config, const ConfigTable& table, int64_t window);

 private:
  AttentionOptions OptionsOfLoop(int64_t loop) const;
  // Normed (optionally) and rotated heads [N, heads, head_dim] of a projection.
  Var RotatedHeads(Tape& tape, const Var& x_NC, Param* norm, const Tensor& positions_N) const;

  const Options options_;
  Param &q_proj_, &k_proj_, &v_proj_, &o_proj_;
  Param *gate_proj_ = nullptr, *q_norm_ = nullptr, *k_norm_ = nullptr;
};

}  // namespace lt2
