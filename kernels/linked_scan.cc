#include "kernels/linked_scan.h"

#include <utility>
#include <vector>

namespace lt2 {

LinkedScan::Launched LinkedScan::Launch(Tape& tape, StateLink& link,
                                        const std::function<StateLink::Segment()>& segment) {
  Launched launched{.incoming = {}, .arrive = Nothing};
  // Of all this the state from the left alone survives recompute: it is small and was sent.
  const std::vector<Tensor> kept = tape.Kept([&]() -> std::vector<Tensor> {
    StateLink::Incoming incoming;
    launched.arrive = link.Exchange(tape.stream(), segment(), &incoming);
    return {incoming.state_1GKV, incoming.maps, incoming.max_1G, incoming.next_max_1G};
  });
  launched.incoming = {kept[0], kept[1], kept[2], kept[3]};
  return launched;
}

LinkedScan::LinkedScan(Tape& tape, StateLink& link, const char* name, std::span<const Var> in,
                       const Launched& exchange, const Meanwhile& meanwhile)
    : link_(&link), incoming_(exchange.incoming), under_way_(tape, in, name) {
  meanwhile();
  exchange.arrive();
}

std::vector<Var> LinkedScan::Record(Tape& tape, std::vector<Tensor> out, Node node) const {
  return tape.Record({&under_way_.launched(), 1}, std::move(out), std::move(node));
}

void LinkedScan::Backward(Stream& stream, GradSlot& slot, const Tensor& final_max_1G,
                          const Gradients& gradients) const {
  const Tensor& state = incoming_.state_1GKV;
  GradInto dincoming;
  dincoming.to = Tensor::Empty(state.shape(), state.dtype(), state.device());
  gradients({}, dincoming, {});
  auto arriving = link_->ExchangeGradient(stream, dincoming.to, incoming_, final_max_1G);
  under_way_.HandOver(slot, [arriving = std::move(arriving), gradients](std::span<GradSlot> dx) {
    gradients(arriving(), {}, dx);
  });
}

}  // namespace lt2
