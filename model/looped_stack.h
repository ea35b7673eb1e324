// N blocks run T times with one set of weights (LT2, arXiv 2605.20670, eq. 2):
//
//   h̃ₜ = F_N(… F_1(hₜ₋₁)),  hₜ = h̃ₜ + ρₜ ⊙ hₜ₋₁,  t = 1 … T,  ρ = 0 at first
//
// No norm between loops, no state carried from one loop to the next. With `loop_norm` every loop
// ends with the final norm (Ouro, arXiv 2510.25741): hₜ = RMSNorm(h̃ₜ + ρₜ ⊙ hₜ₋₁).
//
// Under tensor parallelism h is what lies between layers: a rank's share of the tokens, or all. A
// stage of a pipeline has some of the blocks; stage 0 also has what comes between loops and after.
#pragma once

#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "model/block.h"
#include "parallel/tensor_shard.h"

namespace lt2 {

// What a forward pass reports when asked: one entry a loop, of all tokens of the row. On the host,
// F64.
struct LoopDiagnostics {
  std::vector<double> hidden_rms;        // root mean square of hₜ
  std::vector<double> gradient_norm;     // ‖∂(sum of losses)/∂hₜ‖; filled by Backward
  std::vector<double> loss;              // mean loss read out from hₜ
  std::vector<double> first_token_mass;  // mean attention mass on the document's first token

  void Clear(int64_t loops) {
    for (auto* numbers : {&hidden_rms, &gradient_norm, &loss, &first_token_mass}) {
      numbers->assign(loops, 0.0);
    }
  }
  // From a sum and the number of its terms.
  void SetMass(int64_t loop, const std::vector<double>& sums) {
    first_token_mass[loop] = sums[1] > 0 ? sums[0] / sums[1] : 0;
  }
};

constexpr int kAllParams = std::numeric_limits<int>::max();

struct ForwardOptions {
  RecomputePolicy recompute = RecomputePolicy::kNone;
  // Not null: filled. Asks for extra work (one readout a loop); for logging intervals.
  LoopDiagnostics* diagnostics = nullptr;
  // Called before the forward reads any of the first `end` of LanguageModel::params(), with ever
  // more of them; kAllParams at last.
  std::function<void(int end)> before_params = {};
  // Not null: the tokens are this rank's part of a row (MixerContext::shard).
  ContextShard* shard = nullptr;
  // Not null: other ranks hold the other parts of layers, as the model was told. A group of one is
  // as none.
  TensorShard* tensor = nullptr;
  // Prefill: one state per (loop, layer), loop-major, to be filled.
  std::vector<MixerState>* states = nullptr;
  // What LanguageModel::Seeds will be told, where a recorded forward may know it: the head then
  // makes its gradients from logits computed once.
  std::optional<double> z_loss = {};
};

// One of the stages among which a pipeline divides the blocks.
struct StagePlace {
  int stage = 0, stages = 1;
  bool first() const { return stage == 0; }
  // The blocks of this stage are those from Begin() to End().
  int64_t Begin(int64_t layers) const { return PartBegin(layers, stages, stage); }
  int64_t End(int64_t layers) const { return PartBegin(layers, stages, stage + 1); }
};

class LoopedStack {
 public:
  LoopedStack(const ModelConfig& config, const ParamScope& root, const TensorSplit& split,
              const StagePlace& place = {});

  // h_ND: embeddings. readout, if set, is shown hₜ after each loop t (0-based).
  using Readout = std::function<void(int64_t loop, const Var& h_ND)>;
  struct Output {
    Var h_ND;
    std::vector<Var> auxiliary_losses;  // of all mixers that have one, F64 [1] each
  };
  Output Forward(Tape& tape, Var h_ND, const Documents& documents, const ForwardOptions& options,
                 const Readout& readout = {});

  // What Forward is made of, for a stage whose tape ends where the next stage begins. The blocks
  // that are here, in one loop: their output, then their auxiliary losses.
  std::vector<Var> RunBlocks(Tape& tape, const Var& h_ND, int64_t loop, const Documents& documents,
                             const ForwardOptions& options, const Tensor& first_token_mass);
  // hₜ of h̃ₜ and hₜ₋₁: what ends loop `loop`, 0-based.
  Var EndLoop(Tape& tape, const Var& h_ND, const Var& previous_ND, int64_t loop);
  // Of hₜ, into options.diagnostics; its gradient's norm comes with the gradient. To be called by
  // every rank that shares the row.
  static Var Observe(Tape& tape, const Var& h_ND, int64_t loop, const ForwardOptions& options);
  // What RunBlocks added to first_token_mass, F64 [2], summed over those ranks.
  static std::vector<double> MassOverRanks(const Tensor& first_token_mass,
                                           const ForwardOptions& options);

  // One token per sequence. states: per (loop, layer), loop-major.
  Tensor Step(Stream& stream, Tensor h_BD, std::vector<MixerState>& states, StepContext context,
              const Readout& readout = {});
  // hₜ as a head reads it: its final norm, which with loop_norm it has already.
  Var Normed(Tape& tape, const Var& h_ND);

  double FlopsPerToken(int64_t sequence) const;  // all loops
  int64_t loops() const { return loops_; }
  const Param* norm() const { return norm_; }  // null where there is no first stage
  const std::vector<std::unique_ptr<Block>>& blocks() const { return blocks_; }

 private:
  // hₜ, then the auxiliary losses of this loop.
  std::vector<Var> RunLoop(Tape& tape, const Var& h_ND, int64_t loop, const Documents& documents,
                           const ForwardOptions& options, const Tensor& first_token_mass);

  int64_t loops_;
  bool loop_norm_;
  double eps_;
  int64_t first_block_;        // of those here
  std::vector<int> declared_;  // by block: parameters up to its last
  std::vector<std::unique_ptr<Block>> blocks_;
  Param* rho_;   // [T, width], or null
  Param* norm_;  // the final norm, or null
};

}  // namespace lt2
