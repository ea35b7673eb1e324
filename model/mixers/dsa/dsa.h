// DeepSeek sparse attention: every token attends to the top_k earlier ones that a small network,
// the lightning indexer, ranks highest. All heads share one latent per token, as keys and, in its
// first channels, as values (multi-query attention in the latent space of MLA); no positions are
// rotated (LT2, arXiv 2605.20670).
//
//   I_ts = sum_j w_tj max(a_tj · b_s, 0),  a = W_a u, b = LayerNorm(W_b u) + β,
//   w = W_w u / √(J C), J index heads of C channels;  S_t = the top_k best s <= t
//   c = W_c u, q = W_q u;  o_th = sum_{s in S_t} softmax(q_th · c_s / √D)_s c_s[: value_dim]
//   y = W_o o
//
// The indexer learns from a loss of its own alone, that its scores predict where the heads look
// (kernels/indexer_loss.h): its input is cut off from the model, which learns from the language
// model's loss alone. as_released is what LT2's code runs: scores are the mean over heads of a · b,
// no norm, and the indexer stays as it was initialised. Ranks that divide the heads all choose the
// keys, and hold all of the latent and of the indexer.
#pragma once

#include "core/config.h"
#include "core/param_set.h"
#include "model/config.h"
#include "model/mixer.h"

namespace lt2 {

class DeepSeekSparseAttention : public Mixer {
 public:
  struct Options {
    int64_t width, heads;
    int64_t value_dim;  // channels of the latent that are values
    int64_t tail_dim;   // channels behind them, for keys only
    int64_t top_k;
    int64_t index_heads, index_dim;  // J, C
    double index_loss;               // what the indexer's loss weighs in the objective
    double norm_eps;
    bool as_released;
    int64_t latent() const { return value_dim + tail_dim; }
  };
  // [model.dsa]: heads (model.heads), kv_heads = 1 (no other value), top_k = 2048, value_dim = 4
  // head_dim, tail_dim = head_dim / 2, index_heads = heads, index_dim = head_dim / 2, index_loss =
  // 1, as_released = false. At head_dim 128 these are LT2's sizes, 512 + 64 and 64.
  static Options ReadOptions(const ModelConfig& config, const ConfigTable& table);
  static ForeignTable ForeignNames();
  static std::vector<HeadCount> HeadCounts(const Options& options) {
    return {{"heads", options.heads}};
  }
  static std::vector<SizeLimit> GpuLimits(const Options& options, const RunSizes& run);

  DeepSeekSparseAttention(const Options& options, const MixerSite& site);
  MixerOutput Forward(Tape& tape, const Var& x_ND, const MixerContext& context) override;
  Tensor Step(Stream& stream, const Tensor& x_BD, MixerState& state,
              const StepContext& context) override;
  std::vector<StateEntry> StateSpec(int64_t sequences, int64_t capacity,
                                    DType dtype) const override;
  double FlopsPerToken(int64_t sequence) const override;
  SequenceStrategy strategy() const override { return SequenceStrategy::kGather; }
  bool has_auxiliary_loss() const override { return true; }

 private:
  // What scores are made of; w has no value as_released.
  struct Index {
    Var a_NJC, b_NC, w_NJ;
  };
  // x_ND must not need a gradient.
  Index IndexOf(Tape& tape, const Var& x_ND);
  double scale() const;

  const Options options_;
  Param &q_proj_, &kv_proj_, &o_proj_;
  Param &index_q_, &index_k_;
  // Not as_released.
  Param *index_w_ = nullptr, *index_norm_ = nullptr, *index_bias_ = nullptr;
};

}  // namespace lt2
