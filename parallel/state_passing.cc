#include "parallel/state_passing.h"

#include <algorithm>
#include <array>

namespace lt2 {
namespace {

constexpr int kManyRanks = 16;
constexpr int64_t kHeadBlocks = 4;  // of the chain

Tensor LikeState(const Tensor& state) {
  return Tensor::Empty(state.shape(), state.dtype(), state.device());
}

StateMap KindOf(const Tensor& maps_RX, const Tensor& state_1GKV) {
  const int64_t heads = state_1GKV.dim(1), k = state_1GKV.dim(2);
  if (maps_RX.dim(1) == heads) return StateMap::kNumber;
  return maps_RX.dim(1) == heads * k ? StateMap::kRows : StateMap::kMatrix;
}

// Heads [begin, end) of x [1, G, …].
Tensor Heads(const Tensor& x, int64_t begin, int64_t end) {
  Shape shape = x.shape();
  const int64_t size = x.size() / shape[1];
  shape[1] = end - begin;
  return x.Flat(begin * size, (end - begin) * size).Reshape(shape);
}

// fn(block, its first head, the one after its last).
template <class Fn>
void ForEachHeadBlock(int64_t heads, const Fn& fn) {
  const int64_t blocks = std::min(kHeadBlocks, heads);
  for (int64_t b = 0; b < blocks; ++b) fn(b, heads * b / blocks, heads * (b + 1) / blocks);
}

// [3, X]: rows of the fold that a step of the chain is, the first and last as given.
Tensor Rows3(const Tensor& first, const Tensor& second, const Tensor& third) {
  const Tensor rows = Tensor::Empty({3, second.size()}, second.dtype(), second.device());
  const Tensor* const of[] = {&first, &second, &third};
  for (int i = 0; i < 3; ++i) {
    if (of[i]->defined()) rows.Flat(i * second.size(), second.size()).CopyFrom(*of[i]);
  }
  return rows;
}

}  // namespace

StateExchange ChosenExchange(StateExchange asked, const Communicator& cp) {
  if (asked != StateExchange::kAuto) return asked;
  const bool far = cp.local_size() < cp.size() || cp.size() > kManyRanks;
  return far ? StateExchange::kChain : StateExchange::kGather;
}

StatePassing::StatePassing(Communicator& cp, Device device, StateExchange exchange)
    : cp_(cp),
      chain_(ChosenExchange(exchange, cp) == StateExchange::kChain),
      links_({cp.size()}, DType::kI32, device),
      own_links_({3}, DType::kI32, device) {}

void StatePassing::Fill(std::span<const int32_t> links) {
  if (links_.tensor().on_meta()) return;
  std::ranges::copy(links, links_.Next<int32_t>());
  links_.Send();
  const int rank = cp_.rank();
  const int32_t next = rank + 1 < cp_.size() ? links[rank + 1] & kContinues : 0;
  std::ranges::copy(std::array<int32_t, 3>{0, links[rank], next}, own_links_.Next<int32_t>());
  own_links_.Send();
}

Tensor StatePassing::Gather(std::span<const Tensor> parts, const char* label) {
  int64_t elements = 0;
  for (const Tensor& part : parts) elements += part.size();
  const Tensor all = Tensor::Empty({cp_.size(), elements}, parts[0].dtype(), parts[0].device());
  int64_t at = cp_.rank() * elements;
  for (const Tensor& part : parts) {
    all.Flat(at, part.size()).CopyFrom(part);
    at += part.size();
  }
  cp_.AllGather(all, std::vector<int64_t>(cp_.size(), elements), label);
  return all;
}

StateLink::Incoming StatePassing::Receive(Stream& stream, const Segment& segment) {
  if (!chain_) return ReceiveGathered(stream, segment);
  return segment.max_1G.defined() ? ReceiveFramedFromLeft(stream, segment)
                                  : ReceiveFromLeft(stream, segment);
}

StateLink::Incoming StatePassing::ReceiveGathered(Stream& stream, const Segment& segment) {
  const Tensor& state = segment.state_1GKV;
  Incoming incoming{.state_1GKV = LikeState(state), .maps = {}};
  if (segment.max_1G.defined()) {
    const Tensor& max = segment.max_1G;
    const Tensor parts =
        Gather(std::vector<Tensor>{state, max, segment.log_map_1G}, "states to the right");
    incoming.max_1G = LikeState(max);
    incoming.next_max_1G = LikeState(max);
    incoming.maps = Tensor::Empty({cp_.size(), max.size()}, max.dtype(), max.device());
    StateFoldMax(stream, {.parts_RX = parts,
                          .links_R = links_.tensor(),
                          .part = cp_.rank(),
                          .out_1GKV = incoming.state_1GKV,
                          .out_max_1G = incoming.max_1G,
                          .next_max_1G = incoming.next_max_1G,
                          .maps_RG = incoming.maps});
    return incoming;
  }
  const Tensor& map = segment.map_1GKX;
  const Tensor parts = Gather(std::vector<Tensor>{state, map}, "states to the right");
  incoming.maps = Tensor::Empty({cp_.size(), map.size()}, map.dtype(), map.device());
  for (int r = 0; r < cp_.size(); ++r) {
    const int64_t at = r * parts.dim(1) + state.size();
    incoming.maps.Rows(r, r + 1).CopyFrom(parts.Flat(at, map.size()));
  }
  StateFold(stream, {.states_RX = parts,
                     .maps_RX = incoming.maps,
                     .map = KindOf(incoming.maps, state),
                     .links_R = links_.tensor(),
                     .part = cp_.rank(),
                     .out_1GKV = incoming.state_1GKV});
  return incoming;
}

StateLink::Incoming StatePassing::ReceiveFromLeft(Stream& stream, const Segment& segment) {
  const Tensor& own = segment.state_1GKV;
  const Incoming incoming{.state_1GKV = LikeState(own), .maps = segment.map_1GKX};
  const Tensor outgoing = LikeState(own);
  const bool first = cp_.rank() == 0, last = cp_.rank() + 1 == cp_.size();
  if (first) incoming.state_1GKV.Zero();
  std::vector<Pending> received, sent;
  ForEachHeadBlock(own.dim(1), [&](int64_t, int64_t begin, int64_t end) {
    if (first) return;
    received.push_back(cp_.ReceiveAsync(Heads(incoming.state_1GKV, begin, end), cp_.rank() - 1,
                                        "state from the left"));
  });
  ForEachHeadBlock(own.dim(1), [&](int64_t block, int64_t begin, int64_t end) {
    if (!first) received[block].Wait();
    if (last) return;
    const Tensor out = Heads(outgoing, begin, end), map = Heads(segment.map_1GKX, begin, end);
    const Tensor maps = Rows3({}, map, {});
    StateFold(stream, {.states_RX = Rows3(Heads(incoming.state_1GKV, begin, end),
                                          Heads(own, begin, end), {}),
                       .maps_RX = maps,
                       .map = KindOf(maps, out),
                       .links_R = own_links_.tensor(),
                       .part = 2,
                       .out_1GKV = out});
    sent.push_back(cp_.SendAsync(out, cp_.rank() + 1, "state to the right"));
  });
  for (const Pending& send : sent) send.Wait();
  return incoming;
}

StateLink::Incoming StatePassing::ReceiveFramedFromLeft(Stream& stream, const Segment& segment) {
  const Tensor &own = segment.state_1GKV, &max = segment.max_1G;
  const int64_t heads = max.size(), size = own.size() + 2 * heads;
  // A state, its frame, and the log of a map, which for what comes from the left is not read.
  const Tensor message = Tensor::Zeros({size}, own.dtype(), own.device());
  const Tensor mine = Tensor::Empty({size}, own.dtype(), own.device());
  mine.Flat(0, own.size()).CopyFrom(own);
  mine.Flat(own.size(), heads).CopyFrom(max);
  mine.Flat(own.size() + heads, heads).CopyFrom(segment.log_map_1G);
  if (cp_.rank() > 0) cp_.Receive(message, cp_.rank() - 1, "state from the left");

  const Incoming incoming{.state_1GKV = message.Flat(0, own.size()).Reshape(own.shape()),
                          .maps = Tensor::Empty({3, heads}, own.dtype(), own.device()),
                          .max_1G = message.Flat(own.size(), heads).Reshape(max.shape()),
                          .next_max_1G = LikeState(max)};
  const Tensor next = Tensor::Zeros({size}, own.dtype(), own.device()), unused = LikeState(max);
  StateFoldMax(stream, {.parts_RX = Rows3(message, mine, {}),
                        .links_R = own_links_.tensor(),
                        .part = 2,
                        .out_1GKV = next.Flat(0, own.size()).Reshape(own.shape()),
                        .out_max_1G = incoming.next_max_1G,
                        .next_max_1G = unused,
                        .maps_RG = incoming.maps});
  next.Flat(own.size(), heads).CopyFrom(incoming.next_max_1G);
  if (cp_.rank() + 1 < cp_.size()) cp_.Send(next, cp_.rank() + 1, "state to the right");
  return incoming;
}

Tensor StatePassing::OutgoingGradient(Stream& stream, const Tensor& dincoming_1GKV,
                                      const Incoming& incoming, const Tensor& final_max_1G) {
  if (chain_) return GradientFromRight(stream, dincoming_1GKV, incoming, final_max_1G);
  const Tensor out = LikeState(dincoming_1GKV);
  StateFold(stream,
            {.states_RX = Gather(std::span(&dincoming_1GKV, 1), "state gradients to the left"),
             .maps_RX = incoming.maps,
             .map = KindOf(incoming.maps, dincoming_1GKV),
             .links_R = links_.tensor(),
             .part = cp_.rank(),
             .reverse = true,
             .from_max_1G = final_max_1G.defined() ? incoming.next_max_1G : Tensor(),
             .to_max_1G = final_max_1G,
             .out_1GKV = out});
  return out;
}

Tensor StatePassing::GradientFromRight(Stream& stream, const Tensor& dincoming_1GKV,
                                       const Incoming& incoming, const Tensor& final_max_1G) {
  const bool first = cp_.rank() == 0, last = cp_.rank() + 1 == cp_.size();
  const bool framed = final_max_1G.defined();
  const int64_t heads = dincoming_1GKV.dim(1);
  const Tensor from_right = LikeState(dincoming_1GKV), to_left = LikeState(dincoming_1GKV);
  const Tensor out = framed ? LikeState(dincoming_1GKV) : from_right;
  if (last) from_right.Zero();
  std::vector<Pending> received, sent;
  ForEachHeadBlock(heads, [&](int64_t, int64_t begin, int64_t end) {
    if (last) return;
    received.push_back(cp_.ReceiveAsync(Heads(from_right, begin, end), cp_.rank() + 1,
                                        "state gradient from the right"));
  });
  ForEachHeadBlock(heads, [&](int64_t block, int64_t begin, int64_t end) {
    if (!last) received[block].Wait();
    const auto of_block = [&](const Tensor& x_1G) {
      return framed ? Heads(x_1G, begin, end) : Tensor();
    };
    const Tensor own = Heads(dincoming_1GKV, begin, end);
    const Tensor maps =
        Rows3({}, Heads(framed ? incoming.maps.Rows(1, 2) : incoming.maps, begin, end), {});
    StateFoldArgs step{.states_RX = Rows3({}, own, Heads(from_right, begin, end)),
                       .maps_RX = maps,
                       .map = KindOf(maps, own),
                       .links_R = own_links_.tensor(),
                       .part = 0,
                       .reverse = true,
                       .out_1GKV = Heads(to_left, begin, end)};
    if (!first) {
      StateFold(stream, step);
      sent.push_back(cp_.SendAsync(step.out_1GKV, cp_.rank() - 1, "state gradient to the left"));
    }
    if (!framed) return;
    step.part = 1;
    step.from_max_1G = of_block(incoming.next_max_1G);
    step.to_max_1G = of_block(final_max_1G);
    step.out_1GKV = Heads(out, begin, end);
    StateFold(stream, step);
  });
  for (const Pending& send : sent) send.Wait();
  return out;
}

}  // namespace lt2
