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

int64_t HeadBlocks(const Tensor& x_1G) { return std::min(kHeadBlocks, x_1G.dim(1)); }

// A block's heads of x [1, G, …].
Tensor HeadBlock(const Tensor& x, int64_t block) {
  Shape shape = x.shape();
  const int64_t heads = shape[1], size = x.size() / heads, blocks = HeadBlocks(x);
  const int64_t begin = heads * block / blocks, end = heads * (block + 1) / blocks;
  shape[1] = end - begin;
  return x.Flat(begin * size, (end - begin) * size).Reshape(shape);
}

// Messages of blocks of heads from one rank, each asked for while the one before is worked on.
class BlocksFrom {
 public:
  // rank < 0: nothing comes.
  BlocksFrom(Communicator& cp, const Tensor& into_1G, int rank, const char* label)
      : cp_(cp), into_1G_(into_1G), rank_(rank), label_(label) {
    Ask(0);
  }
  void Wait(int64_t block) {
    next_.Wait();
    Ask(block + 1);
  }

 private:
  void Ask(int64_t block) {
    if (rank_ < 0 || block == HeadBlocks(into_1G_)) return;
    next_ = cp_.ReceiveAsync(HeadBlock(into_1G_, block), rank_, label_);
  }

  Communicator& cp_;
  const Tensor into_1G_;
  const int rank_;
  const char* const label_;
  Pending next_;
};

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
  if (cp.in_turn()) return StateExchange::kChain;
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

StatePassing::Gathering StatePassing::Gather(std::span<const Tensor> parts, const char* label) {
  int64_t elements = 0;
  for (const Tensor& part : parts) elements += part.size();
  const Tensor all = Tensor::Empty({cp_.size(), elements}, parts[0].dtype(), parts[0].device());
  int64_t at = cp_.rank() * elements;
  for (const Tensor& part : parts) {
    all.Flat(at, part.size()).CopyFrom(part);
    at += part.size();
  }
  return {all, cp_.AllGatherAsync(all, std::vector<int64_t>(cp_.size(), elements), label)};
}

StateLink::Incoming StatePassing::EmptyIncoming(const Segment& segment) const {
  const Tensor &map = segment.map_1GKX, &max = segment.max_1G;
  Incoming incoming{.state_1GKV = LikeState(segment.state_1GKV), .maps = map};
  const bool framed = max.defined();
  if (framed) incoming.max_1G = LikeState(max), incoming.next_max_1G = LikeState(max);
  if (!chain_ || framed) {
    const Tensor& row = framed ? max : map;
    const int64_t rows = chain_ ? 3 : cp_.size();
    incoming.maps = Tensor::Empty({rows, row.size()}, row.dtype(), row.device());
  }
  return incoming;
}

StateLink::Arriving<void> StatePassing::Exchange(Stream& stream, const Segment& segment,
                                                 Incoming* incoming) {
  *incoming = EmptyIncoming(segment);
  const bool framed = segment.max_1G.defined();
  if (chain_) {
    return [this, &stream, segment, framed, to = *incoming] {
      framed ? ReceiveFramedFromLeft(stream, segment, to) : ReceiveFromLeft(stream, segment, to);
    };
  }
  std::vector<Tensor> parts = {segment.state_1GKV};
  if (framed) {
    parts.insert(parts.end(), {segment.max_1G, segment.log_map_1G});
  } else {
    parts.push_back(segment.map_1GKX);
  }
  return
      [this, &stream, gathering = Gather(parts, "states to the right"), segment, to = *incoming] {
        gathering.pending.Wait();
        FoldGathered(stream, gathering.messages_RX, segment, to);
      };
}

void StatePassing::FoldGathered(Stream& stream, const Tensor& messages_RX, const Segment& segment,
                                const Incoming& incoming) {
  if (segment.max_1G.defined()) {
    StateFoldMax(stream, {.parts_RX = messages_RX,
                          .links_R = links_.tensor(),
                          .part = cp_.rank(),
                          .out_1GKV = incoming.state_1GKV,
                          .out_max_1G = incoming.max_1G,
                          .next_max_1G = incoming.next_max_1G,
                          .maps_RG = incoming.maps});
    return;
  }
  const Tensor &state = segment.state_1GKV, &map = segment.map_1GKX;
  for (int r = 0; r < cp_.size(); ++r) {
    const int64_t at = r * messages_RX.dim(1) + state.size();
    incoming.maps.Rows(r, r + 1).CopyFrom(messages_RX.Flat(at, map.size()));
  }
  StateFold(stream, {.states_RX = messages_RX,
                     .maps_RX = incoming.maps,
                     .map = KindOf(incoming.maps, state),
                     .links_R = links_.tensor(),
                     .part = cp_.rank(),
                     .out_1GKV = incoming.state_1GKV});
}

void StatePassing::ReceiveFromLeft(Stream& stream, const Segment& segment,
                                   const Incoming& incoming) {
  const Tensor& own = segment.state_1GKV;
  const Tensor outgoing = LikeState(own);
  const bool first = cp_.rank() == 0, last = cp_.rank() + 1 == cp_.size();
  if (first) incoming.state_1GKV.Zero();
  std::vector<Pending> sent;
  BlocksFrom left(cp_, incoming.state_1GKV, cp_.rank() - 1, "state from the left");
  for (int64_t block = 0; block < HeadBlocks(own); ++block) {
    left.Wait(block);
    if (last) continue;
    const Tensor out = HeadBlock(outgoing, block), map = HeadBlock(segment.map_1GKX, block);
    const Tensor maps = Rows3({}, map, {});
    StateFold(stream,
              {.states_RX = Rows3(HeadBlock(incoming.state_1GKV, block), HeadBlock(own, block), {}),
               .maps_RX = maps,
               .map = KindOf(maps, out),
               .links_R = own_links_.tensor(),
               .part = 2,
               .out_1GKV = out});
    sent.push_back(cp_.SendAsync(out, cp_.rank() + 1, "state to the right"));
  }
  for (const Pending& send : sent) send.Wait();
}

void StatePassing::ReceiveFramedFromLeft(Stream& stream, const Segment& segment,
                                         const Incoming& incoming) {
  const Tensor &own = segment.state_1GKV, &max = segment.max_1G;
  const int64_t heads = max.size(), size = own.size() + 2 * heads;
  // A state, its frame, and the log of a map, which for what comes from the left is not read.
  const Tensor message = Tensor::Zeros({size}, own.dtype(), own.device());
  const Tensor mine = Tensor::Empty({size}, own.dtype(), own.device());
  mine.Flat(0, own.size()).CopyFrom(own);
  mine.Flat(own.size(), heads).CopyFrom(max);
  mine.Flat(own.size() + heads, heads).CopyFrom(segment.log_map_1G);
  if (cp_.rank() > 0) cp_.Receive(message, cp_.rank() - 1, "state from the left");
  incoming.state_1GKV.CopyFrom(message.Flat(0, own.size()));
  incoming.max_1G.CopyFrom(message.Flat(own.size(), heads));
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
}

StateLink::Arriving<Tensor> StatePassing::ExchangeGradient(Stream& stream,
                                                           const Tensor& dincoming_1GKV,
                                                           const Incoming& incoming,
                                                           const Tensor& final_max_1G) {
  if (chain_) {
    return [this, &stream, dincoming_1GKV, incoming, final_max_1G] {
      return GradientFromRight(stream, dincoming_1GKV, incoming, final_max_1G);
    };
  }
  return [this, &stream, incoming, final_max_1G, out = LikeState(dincoming_1GKV),
          gathering = Gather(std::span(&dincoming_1GKV, 1), "state gradients to the left")] {
    gathering.pending.Wait();
    StateFold(stream, {.states_RX = gathering.messages_RX,
                       .maps_RX = incoming.maps,
                       .map = KindOf(incoming.maps, out),
                       .links_R = links_.tensor(),
                       .part = cp_.rank(),
                       .reverse = true,
                       .from_max_1G = final_max_1G.defined() ? incoming.next_max_1G : Tensor(),
                       .to_max_1G = final_max_1G,
                       .out_1GKV = out});
    return out;
  };
}

Tensor StatePassing::GradientFromRight(Stream& stream, const Tensor& dincoming_1GKV,
                                       const Incoming& incoming, const Tensor& final_max_1G) {
  const bool first = cp_.rank() == 0, last = cp_.rank() + 1 == cp_.size();
  const bool framed = final_max_1G.defined();
  const Tensor from_right = LikeState(dincoming_1GKV), to_left = LikeState(dincoming_1GKV);
  const Tensor out = framed ? LikeState(dincoming_1GKV) : from_right;
  if (last) from_right.Zero();
  std::vector<Pending> sent;
  BlocksFrom right(cp_, from_right, last ? -1 : cp_.rank() + 1, "state gradient from the right");
  for (int64_t block = 0; block < HeadBlocks(dincoming_1GKV); ++block) {
    right.Wait(block);
    const Tensor own = HeadBlock(dincoming_1GKV, block);
    const Tensor maps =
        Rows3({}, HeadBlock(framed ? incoming.maps.Rows(1, 2) : incoming.maps, block), {});
    StateFoldArgs step{.states_RX = Rows3({}, own, HeadBlock(from_right, block)),
                       .maps_RX = maps,
                       .map = KindOf(maps, own),
                       .links_R = own_links_.tensor(),
                       .part = 0,
                       .reverse = true,
                       .out_1GKV = HeadBlock(to_left, block)};
    if (!first) {
      StateFold(stream, step);
      sent.push_back(cp_.SendAsync(step.out_1GKV, cp_.rank() - 1, "state gradient to the left"));
    }
    if (!framed) continue;
    step.part = 1;
    step.from_max_1G = HeadBlock(incoming.next_max_1G, block);
    step.to_max_1G = HeadBlock(final_max_1G, block);
    step.out_1GKV = HeadBlock(out, block);
    StateFold(stream, step);
  }
  for (const Pending& send : sent) send.Wait();
  return out;
}

}  // namespace lt2
