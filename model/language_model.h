// Embedding, looped stack, final norm and head: token ids to a loss, to logits, to the next token.
//
//   logits = W_out · RMSNorm(h_T),  W_out = the embedding where tied
//
// With `exit_gate` (Ouro, arXiv 2510.25741) a gate reads the normed hₜ of every loop but the last,
// and a token leaves after loop t with probability p_t (kernels/exit_loss.h). The objective is then
// sum_t p_t loss_t - exit_entropy · H(p), with the head's loss after every loop.
#pragma once

#include <memory>
#include <vector>

#include "core/param_set.h"
#include "kernels/head_loss.h"
#include "model/config.h"
#include "model/looped_stack.h"

namespace lt2 {

class LanguageModel {
 public:
  // Declares the parameters; they have no memory until someone binds it. A split that
  // CheckSplit(config, split) allows. A stage of a pipeline has its blocks alone, and the first one
  // embedding and head; model/model_stage.h runs it.
  explicit LanguageModel(const ModelConfig& config, const TensorSplit& split = {},
                         const StagePlace& place = {});

  ParamSet& params() { return params_; }
  const ModelConfig& config() const { return config_; }
  // How often one forward of a micro-batch uses each parameter, in the order of params().
  std::vector<int> UsesPerMicroBatch() const;

  // Sums over counted tokens, F64 [loss_sums()]: nll, lse², their number (kernels/head_loss.h).
  // With an exit gate the first two are expected values, and H and p_1 … p_T follow
  // (kernels/exit_loss.h). ids, targets: I32 [N]; a negative target is not counted. `documents`
  // must outlive Backward.
  struct Loss {
    Var sums;
    std::vector<Var> auxiliary;  // F64 [1] each: seed them with 1
    // The seed of sums, where the forward made gradients from it, and its z_loss.
    Tensor seed = {};
    double z_loss = 0;
  };
  Loss Forward(Tape& tape, const Tensor& ids_N, const Tensor& targets_N, const Documents& documents,
               ForwardOptions options = {});
  int64_t loss_sums() const;
  // What Backward starts from, for z_loss · lse² in the objective.
  std::vector<Tape::Seed> Seeds(const Loss& loss, double z_loss) const;
  // F64 [kHeadLossSums] of the logits that decoding gives, not recorded.
  Tensor Evaluate(Stream& stream, const Tensor& ids_N, const Tensor& targets_N,
                  const Documents& documents, const ForwardOptions& options = {});

  // What Forward and Evaluate are made of, for the first of several stages. options.tensor: null
  // for a group of one.
  Var Embedded(Tape& tape, const Tensor& ids_N, const ForwardOptions& options);
  // What an exit gate's loss needs of every loop, the last one too.
  struct Readouts {
    std::vector<Var> gates;
    std::vector<TokenLosses> losses;
  };
  // Adds what is read out of hₜ, loop `loop`, and to the diagnostics its loss.
  void ReadOut(Tape& tape, const Var& h_ND, int64_t loop, const Tensor& targets_N,
               const ForwardOptions& options, Readouts* readouts);
  // Of the last hₜ and all readouts; without auxiliary losses.
  Loss LossOf(Tape& tape, const Var& h_ND, const Readouts& readouts, const Tensor& targets_N,
              const ForwardOptions& options);
  // F64 [kHeadLossSums] of a hidden state that is normed.
  Var SumsOf(Tape& tape, const Var& normed_ND, const Tensor& targets_N,
             const ForwardOptions& options);
  LoopedStack& stack() { return *stack_; }
  bool is_first_stage() const { return embed_ != nullptr; }
  bool has_auxiliary_losses() const;  // of its mixers

  // From here on Hidden, Evaluate and Step take of each token the first loop at which p_1 + … + p_t
  // reaches `threshold`, and the last one from 1 on, which is the default. Every loop runs all the
  // same: tokens to come read its caches. Below 1 the model must have an exit gate.
  void set_exit_threshold(double threshold);

  // The normed output of the last loop [N, width], or of the loop a token leaves after, as it lies
  // between layers; not recorded.
  Tensor Hidden(Stream& stream, const Tensor& ids_N, const Documents& documents,
                ForwardOptions options = {});
  // [N, vocab] from Hidden.
  Tensor Logits(Stream& stream, const Tensor& hidden_ND);

  // Decoding, on one rank. States are per (loop, layer), loop-major, zero at first.
  std::vector<MixerState> MakeStates(int64_t sequences, int64_t capacity, DType dtype,
                                     Device device) const;
  // One token for each sequence. Logits [B, vocab].
  Tensor Step(Stream& stream, const Tensor& ids_B, const StepContext& context,
              std::vector<MixerState>& states);

  // Of a forward pass, all loops, with the head.
  double FlopsPerToken(int64_t sequence) const;
  double HeadFlopsPerToken() const;  // of it, the head and what an exit gate reads

 private:
  Param& head_weight() { return head_ != nullptr ? *head_ : *embed_; }
  Tensor SeedOfSums(Device device, double z_loss) const;
  // Gate logits [N, 1] from the normed output of a loop.
  Var Gate(Tape& tape, const Var& normed_ND);
  // Fills leaving_ND where tokens may leave early; else empty.
  LoopedStack::Readout ExitReadout(Tape& tape, Tensor* leaving_ND);

  const ModelConfig config_;
  double exit_threshold_ = 1;
  ParamSet params_;
  Param* const embed_;  // it and those below: null in stages but the first
  std::unique_ptr<LoopedStack> stack_;
  Param* head_ = nullptr;
  Param *gate_weight_ = nullptr, *gate_bias_ = nullptr;  // [1, width], [1]
};

}  // namespace lt2
