// A scan over a part of a row (state_link.h) on a tape: its two exchanges of states, and what is
// done while they are under way.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "core/under_way.h"
#include "kernels/scan.h"
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
  // The scan's own node, which has one input.
  std::vector<Var> Record(Tape& tape, std::vector<Tensor> out, Node node) const;

  // A scan's backward: from the gradient of S_out, that of S_in, or with slots (`dx`) those of the
  // scan's inputs. Neither gradient of a state need be there.
  using Gradients = std::function<void(const Tensor& dfinal_1GKV, const GradInto& dinitial_1GKV,
                                       std::span<GradSlot> dx)>;
  // From that node's backward: finds the gradient of S_in alone and launches its exchange. When
  // what was done meanwhile has its gradients, those of the inputs follow.
  void Backward(Stream& stream, GradSlot& slot, const Tensor& final_max_1G,
                const Gradients& gradients) const;

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
