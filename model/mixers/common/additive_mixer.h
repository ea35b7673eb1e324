// What the mixers with an additive state and heads of their own queries, keys and values share:
// linear, retnet and gla, all but the features of the keys, the decay and the norm.
//
//   q, k, v = W u, or silu(conv4(W u)) with `conv`
//   o = the scan over them, scaled by d_k^{−1/2}; each head of k and v serves heads / kv_heads of q
//   y = W_o of a norm of o
#pragma once

#include "kernels/repeat_heads.h"
#include "model/config.h"
#include "model/mixers/common/convolved.h"
#include "model/mixers/common/head_widths.h"
#include "model/mixers/common/recurrent_mixer.h"

namespace lt2 {

class AdditiveMixer : public RecurrentMixer {
 public:
  struct Options {
    int64_t width;
    HeadWidths head;
    bool conv;
    double norm_eps;
  };
  static std::vector<HeadCount> HeadCounts(const Options& options);
  static std::vector<SizeLimit> GpuLimits(const Options& options, const RunSizes& run);
  std::vector<StateEntry> StateSpec(int64_t sequences, int64_t capacity, DType dtype) const final;
  double FlopsPerToken(int64_t sequence) const final;

 protected:
  AdditiveMixer(const Options& options, const MixerSite& site, bool norm = true);

  // Heads of the projections: q [N, heads, k], k [N, kv_heads, k] and v [N, kv_heads, v].
  struct Heads {
    Var q, k, v;
  };
  Heads Project(Tape& tape, const Var& x_ND, const RecurrentRun& run) const;
  // Heads of k or v, or of what is computed from them, for each head of q.
  static Var ForEachQuery(Tape& tape, const Var& x_NHK, const Heads& heads) {
    return RepeatHeads(tape, x_NHK, heads.q.value.dim(1));
  }
  // W_o (RMSNorm_{d_v}(o) ⊙ silu(gate)): retnet and gla.
  Var SwishGated(Tape& tape, const Var& o_NHV, const Var& gate_NC, const RecurrentRun& run) const;
  // Of what the mixer computes beyond q, k, v, the scan and W_o, per token.
  virtual double MoreFlops() const = 0;

  // heads (model.heads), kv_heads (heads), expand_k, expand_v, conv = false, norm_eps = 1e-5.
  static Options ReadCommon(const ModelConfig& config, const ConfigTable& table, double expand_k,
                            double expand_v);
  static ForeignTable CommonForeignNames();

  int64_t values() const { return options_.head.heads * options_.head.v; }
  double scale() const;

  const Options options_;
  const Convolved q_, k_, v_;
  Param& o_proj_;
  Param* o_norm_ = nullptr;  // [v]
};

}  // namespace lt2
