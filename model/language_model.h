// Embedding, looped stack, final norm and head: token ids to a loss, to logits, to the next token.
//
//   logits = W_out · RMSNorm(h_T),  W_out = the embedding where tied
#pragma once

#include <memory>
#include <vector>

#include "core/param_set.h"
#include "model/config.h"
#include "model/looped_stack.h"

namespace lt2 {

class LanguageModel {
 public:
  // Declares the parameters; they have no memory until someone binds it.
  explicit LanguageModel(const ModelConfig& config);

  ParamSet& params() { return params_; }
  const ModelConfig& config() const { return config_; }
  // How often one forward of a micro-batch uses each parameter, in the order of params().
  std::vector<int> UsesPerMicroBatch() const;

  // Sums over counted tokens, F64 [kHeadLossSums] (kernels/head_loss.h): nll, lse², their number.
  // Seed Backward with {1, z_loss, 0}. ids, targets: I32 [N]; a negative target is not counted.
  // `documents` must outlive Backward.
  struct Loss {
    Var sums;
    std::vector<Var> auxiliary;  // F64 [1] each: seed them with 1
  };
  Loss Forward(Tape& tape, const Tensor& ids_N, const Tensor& targets_N, const Documents& documents,
               const ForwardOptions& options = {});
  // What Backward starts from, for z_loss · lse² in the objective.
  static std::vector<Tape::Seed> Seeds(const Loss& loss, double z_loss);

  // The normed output of the last loop [N, width], not recorded.
  Tensor Hidden(Stream& stream, const Tensor& ids_N, const Documents& documents,
                const ForwardOptions& options = {});
  // [N, vocab] from Hidden.
  Tensor Logits(Stream& stream, const Tensor& hidden_ND);

  // Decoding. States are per (loop, layer), loop-major, zero at first.
  std::vector<MixerState> MakeStates(int64_t sequences, int64_t capacity, DType dtype,
                                     Device device) const;
  // One token for each sequence. Logits [B, vocab].
  Tensor Step(Stream& stream, const Tensor& ids_B, const StepContext& context,
              std::vector<MixerState>& states);

  // Of a forward pass, all loops, with the head.
  double FlopsPerToken(int64_t sequence) const;

 private:
  Param& head_weight() { return head_ != nullptr ? *head_ : embed_; }

  ModelConfig config_;
  ParamSet params_;
  Param& embed_;
  std::unique_ptr<LoopedStack> stack_;
  Param& norm_;
  Param* head_ = nullptr;
};

}  // namespace lt2
