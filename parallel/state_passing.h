// States of linear mixers, handed on along the ranks of a context-parallel group.
//
// kGather: every rank gives what its tokens leave (E) and how a state goes through them (M); one
// all-gather later each folds those of the ranks before it into its own S_in, in rank order.
// Backward gathers the gradients of the S_in and folds those of the ranks after it with M^T.
//
// The all-gather is under way while a mixer does what needs none of it.
//
// kChain: a rank waits for its S_in, makes the next one of it and sends that on; M stays at home.
// Heads go in blocks, so that all ranks soon work; mLSTM's states go whole. Backward runs the other
// way, always in blocks.
//
// States and maps are float32 (float64 in a float64 run). Numbers that a rank sends in a layer
// visit, for G heads, states [K, V] and R ranks, whatever the number of tokens:
//
//            forward          backward      messages
//   gather   G K (V + X)      G K V         to all R - 1 others, at once
//   chain    G K V            G K V         to one neighbour, R - 1 times in a row
//
// X = K for the delta rule, else 1; mLSTM has V + 1 columns, and forward 2 G numbers of its frames
// in place of X, in a chain too.
#pragma once

#include <vector>

#include "core/upload.h"
#include "kernels/state_fold.h"
#include "kernels/state_link.h"
#include "parallel/communicator.h"

namespace lt2 {

enum class StateExchange : uint8_t { kAuto, kGather, kChain };

// kAuto: the chain where ranks are on several hosts, or more than 16: there bytes cost more than
// steps. Ranks that take turns always have the chain.
StateExchange ChosenExchange(StateExchange asked, const Communicator& cp);

class StatePassing final : public StateLink {
 public:
  StatePassing(Communicator& cp, Device device, StateExchange exchange = StateExchange::kAuto);

  // By rank: PartLink bits.
  void Fill(std::span<const int32_t> links);

  Arriving<void> Exchange(Stream& stream, const Segment& segment, Incoming* incoming) override;
  Arriving<Tensor> ExchangeGradient(Stream& stream, const Tensor& dincoming_1GKV,
                                    const Incoming& incoming, const Tensor& final_max_1G) override;

 private:
  // Every rank's message, [ranks, elements], under way.
  struct Gathering {
    Tensor messages_RX;
    Pending pending;
  };
  Gathering Gather(std::span<const Tensor> parts, const char* label);
  Incoming EmptyIncoming(const Segment& segment) const;
  void FoldGathered(Stream& stream, const Tensor& messages_RX, const Segment& segment,
                    const Incoming& incoming);
  void ReceiveFromLeft(Stream& stream, const Segment& segment, const Incoming& incoming);
  void ReceiveFramedFromLeft(Stream& stream, const Segment& segment, const Incoming& incoming);
  Tensor GradientFromRight(Stream& stream, const Tensor& dincoming_1GKV, const Incoming& incoming,
                           const Tensor& final_max_1G);

  Communicator& cp_;
  const bool chain_;
  Upload links_;      // of all ranks
  Upload own_links_;  // none, this rank's, and the next one's: a step of the chain as a fold
};

}  // namespace lt2
