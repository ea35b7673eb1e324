// A mixer that is a recurrence, written once: Mix() runs over whole documents or over one decoding
// step, as the RecurrentRun it is given says.
#pragma once

#include "kernels/qkv_conv.h"
#include "kernels/scan_additive.h"
#include "kernels/scan_delta.h"
#include "kernels/scan_mlstm.h"
#include "kernels/ssd.h"
#include "model/mixer.h"

namespace lt2 {

// The sequence operators of one run. `entry` is the place of what they remember in the mixer's
// StateSpec.
class RecurrentRun {
 public:
  explicit RecurrentRun(const MixerContext& context)
      : documents_(&context.documents),
        shard_(context.shard),
        heads_(context.heads),
        sums_(context.sums),
        state_(context.state),
        positions_(context.documents.whole_positions()) {}
  RecurrentRun(MixerState& state, const StepContext& context)
      : state_(&state), positions_(context.positions_B) {}

  // I32 [N]: where each token stands in its document.
  const Tensor& positions() const { return positions_; }
  // For the product that ends the mixer (LinearSum).
  RowSums* sums() const { return sums_; }
  // The place among all of the first of `here` heads, which are as many on every rank.
  int64_t FirstHead(int64_t here) const { return heads_ != nullptr ? heads_->rank() * here : 0; }
  // x [N, channels of the heads here], normed in `groups` groups of the channels of all heads.
  Var Normed(Tape& tape, const Var& x_NC, Param& w_C, double eps, int64_t groups = 1) const;
  // What these wait for, of ranks that hold other tokens, hides behind `meanwhile`, which needs
  // nothing of theirs and is done once in any case; the order of gradients' sums stays the same.
  //
  // Each from the empty state, or one token on from the remembered one.
  Var Scan(Tape& tape, const ScanAdditiveInputs& in, double scale, int entry,
           const Meanwhile& meanwhile = Nothing) const;
  Var Scan(Tape& tape, const ScanDeltaInputs& in, double scale, int entry,
           const Meanwhile& meanwhile = Nothing) const;
  // Remembers its state and, in the next entry, its largest log-weight.
  Var Scan(Tape& tape, const ScanMlstmInputs& in, double scale, int entry,
           const Meanwhile& meanwhile = Nothing) const;
  Var Scan(Tape& tape, const SsdInputs& in, const SsdParams& params, int entry,
           const Meanwhile& meanwhile = Nothing) const;
  Var Conv(Tape& tape, const Var& x_NC, Param& w_CW, Param* bias_C, bool silu, int entry,
           const Meanwhile& meanwhile = Nothing) const;
  // Of queries, keys and values, whose tails are entries that follow each other
  // (kernels/qkv_conv.h).
  std::array<Var, kQkv> Conv(Tape& tape, const std::array<Var, kQkv>& x_NC,
                             const std::array<Param*, kQkv>& w_CW, int64_t head_dim, double eps,
                             int first_entry, const Meanwhile& meanwhile = Nothing) const;

 private:
  StateLink* link() const { return shard_ != nullptr ? &shard_->link() : nullptr; }
  FinalStates final_states() const {
    return state_ != nullptr ? FinalStates::kAll : FinalStates::kNone;
  }
  Var Finish(const ScanOutputs& out, int entry) const;
  void RememberTail(Tape& tape, const Var& x_NC, int entry) const;

  const Documents* documents_ = nullptr;  // null: one token per sequence
  ContextShard* shard_ = nullptr;         // null: all tokens are here
  RankLink* heads_ = nullptr;             // null: all heads are here
  RowSums* sums_ = nullptr;
  MixerState* state_;  // null: nothing is remembered
  Tensor positions_;
};

class RecurrentMixer : public Mixer {
 public:
  MixerOutput Forward(Tape& tape, const Var& x_ND, const MixerContext& context) final;
  Tensor Step(Stream& stream, const Tensor& x_BD, MixerState& state,
              const StepContext& context) final;
  SequenceStrategy strategy() const final { return SequenceStrategy::kScan; }

 protected:
  // The layer's output [N, width].
  virtual Var Mix(Tape& tape, const Var& x_ND, const RecurrentRun& run) = 0;
};

}  // namespace lt2
