// A scan over a part of a row (state_link.h) on a tape: its two exchanges of states, and what is
// done while they are under way.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "core/under_way.h"
#include "kernels/state_link.h"

namespace lt2 {

class LinkedScan {
 public:
  // Launches the exchange of segment(), does `meanwhile`, and waits. The link must outlive
  // Backward.
  LinkedScan(Tape& tape, StateLink& link, const char* name, std::span<const Var> in,
             const std::function<StateLink::Segment()>& segment, const Meanwhile& meanwhile)
      : LinkedScan(tape, link, name, in, Launch(tape, link, segment), meanwhile) {}

  const StateLink::Incoming& incoming() const { return incoming_; }
  Tensor EmptyState() const;
  // The scan's own node, which has one input.
  std::vector<Var> Record(Tape& tape, std::vector<Tensor> out, Node node) const;

  // From that node's backward: launches the exchange of the gradient of S_in. When what was done
  // meanwhile has its gradients, rest(the gradient of S_out, the slots of the scan's inputs) runs.
  using Rest = std::function<void(const Tensor& dfinal_1GKV, std::span<GradSlot> dx)>;
  void Backward(Stream& stream, GradSlot& slot, const Tensor& dincoming_1GKV,
                const Tensor& final_max_1G, Rest rest) const;

 private:
  struct Launched {
    StateLink::Incoming incoming;
    StateLink::Arriving<void> arrive;
  };
  static Launched Launch(Tape& tape, StateLink& link,
                         const std::function<StateLink::Segment()>& segment);
  LinkedScan(Tape& tape, StateLink& link, const char* name, std::span<const Var> in,
             const Launched& exchange, const Meanwhile& meanwhile);

  StateLink* const link_;
  const StateLink::Incoming incoming_;
  const UnderWay under_way_;
};

}  // namespace lt2
