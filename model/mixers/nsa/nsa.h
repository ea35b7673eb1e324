// Native sparse attention (Yuan et al., arXiv 2502.11089), in the form of flash-linear-attention's
// layer: blocks are compressed by their mean, and the three branches share keys and values.
//
//   q, k = rope(W_q u), rope(W_k u),  v = W_v u,  k̄, v̄ = means of k, v over past blocks
//   o_cmp = softmax(q k̄ᵀ/√D) v̄          all past blocks, by their means
//   o_slc = softmax(q kᵀ/√D) v           the tokens of the blocks that weigh most in o_cmp
//   o_win = softmax(q kᵀ/√D) v           the last tokens
//   y = W_o (σ(g_1) o_cmp + σ(g_2) o_slc + σ(g_3) o_win),  g = W_g u per query head
//
// The heads of a group (those of one key/value head) select the same blocks, and must be on one
// rank.
#pragma once

#include "core/param_set.h"
#include "kernels/rope.h"
#include "model/config.h"
#include "model/mixer.h"

namespace lt2 {

class NativeSparseAttention : public Mixer {
 public:
  struct Options {
    int64_t width, heads, kv_heads, head_dim;
    int64_t block_size;    // ℓ, tokens
    int64_t block_counts;  // S, blocks that a group selects
    int64_t window;        // tokens, the query's own included
    RopeOptions rope;
  };
  // [model.nsa]: block_size = 64, block_counts = 16, window = 512, heads, kv_heads, head_dim.
  //
  // heads / kv_heads must be a power of two, 16 or more, as the published kernels have it. Heads
  // are the model's where it groups them (kv_heads < heads) or has 16; else 16 of the same width in
  // all. kv_heads are the model's where it groups them, else one for 16 heads.
  static Options ReadOptions(const ModelConfig& config, const ConfigTable& table);
  static ForeignTable ForeignNames();
  static std::vector<HeadCount> HeadCounts(const Options& options);
  static std::vector<SizeLimit> GpuLimits(const Options& options, const RunSizes& run);

  NativeSparseAttention(const Options& options, const MixerSite& site);
  MixerOutput Forward(Tape& tape, const Var& x_ND, const MixerContext& context) override;
  Tensor Step(Stream& stream, const Tensor& x_BD, MixerState& state,
              const StepContext& context) override;
  std::vector<StateEntry> StateSpec(int64_t sequences, int64_t capacity,
                                    DType dtype) const override;
  double FlopsPerToken(int64_t sequence) const override;
  SequenceStrategy strategy() const override { return SequenceStrategy::kGather; }

 private:
  struct Heads {
    Var q_NHD, k_NGD, v_NGD;
  };
  Heads Project(Tape& tape, const Var& x_ND, const Tensor& positions_N) const;
  Var Gates(Tape& tape, const Var& x_ND) const;  // [N, heads, 3]

  const Options options_;
  const double scale_;  // D^{-1/2}
  Param &q_proj_, &k_proj_, &v_proj_, &g_proj_, &o_proj_;
};

}  // namespace lt2
