// What the mixers of the delta rule share (kernels/scan_delta.h): all but the decay and the output.
//
//   q, k, v = silu(conv4(W u)), or silu(W u);  q, k normed to length 1 per head
//   β = σ(W_b u), or twice that
//   o = the delta rule over (q, k, v, β) with the mixer's decay, scaled by d_k^{−1/2}
//   y = W_o GatedOutput(o)
#pragma once

#include "model/config.h"
#include "model/mixers/common/convolved.h"
#include "model/mixers/common/recurrent_mixer.h"

namespace lt2 {

class DeltaMixer : public RecurrentMixer {
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

  static std::vector<HeadCount> HeadCounts(const Options& options);
  static std::vector<SizeLimit> GpuLimits(const Options& options, const RunSizes& run);
  std::vector<StateEntry> StateSpec(int64_t sequences, int64_t capacity, DType dtype) const final;
  double FlopsPerToken(int64_t sequence) const final;

 protected:
  DeltaMixer(const Options& options, const MixerSite& site);
  Var Mix(Tape& tape, const Var& x_ND, const RecurrentRun& run) final;

  // Log-decays of tokens, at most one of the two.
  struct LogDecay {
    Var g_NG = {}, g_NGK = {};
  };
  // Of tokens x_ND; a_NG is what DecayProjection() made of them.
  virtual LogDecay Decay(Tape& tape, const Var& x_ND, const Var& a_NG) = 0;
  // A weight [v_heads, width] that projects together with W_b; null: the decay needs none.
  virtual Param* DecayProjection() { return nullptr; }
  // What gates the scan's output, of tokens x_ND; undefined: nothing does.
  virtual Var OutputGate(Tape& tape, const Var& x_ND) = 0;
  // From the scan's output [N, v_heads, v_dim] to what W_o sees, [N, v_heads · v_dim]: RMSNorm per
  // value head, times the swish of the gate where there is one.
  virtual Var GatedOutput(Tape& tape, const Var& o_NGV, const Var& gate_NC);
  // Of what the functions above project, per token.
  virtual double GateFlops() const = 0;

  // heads (model.heads), v_heads (heads), conv = true, allow_neg_eigval = false, norm_eps = 1e-5;
  // no gate.
  static Options ReadCommon(const ModelConfig& config, const ConfigTable& table);
  // head_dim, expand_v (times head_dim).
  static void ReadHeadShape(const ConfigTable& table, int64_t head_dim, double expand_v,
                            Options* options);
  static ForeignTable CommonForeignNames();

  int64_t key_width() const { return options_.heads * options_.head_dim; }
  int64_t value_width() const { return options_.v_heads * options_.v_dim; }

  const Options options_;
  Param& o_norm_;  // [v_dim]

 private:
  // Of tokens: β, and the mixer's decay.
  struct Gates {
    Var beta_NG;
    LogDecay decay;
  };
  Gates MakeGates(Tape& tape, const Var& x_ND);
  std::array<Var, kQkv> QueriesKeysValues(Tape& tape, const Var& x_ND, const RecurrentRun& run,
                                          const Meanwhile& meanwhile);

  const double scale_;
  const Convolved q_, k_, v_;
  Param &b_proj_, &o_proj_;
};

}  // namespace lt2
