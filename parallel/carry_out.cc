#include "parallel/carry_out.h"

#include "core/cuda.h"
#include "parallel/reduce_elements.h"

namespace lt2 {
namespace {

using Ranks = std::span<Collective* const>;

Tensor OnHost(const Tensor& x) { return x.on_gpu() ? x.To({}) : x; }

// Elements [begin, begin + elements) of all ranks' tensors, reduced into those of `to`.
void Reduce(Ranks ranks, int64_t begin, int64_t elements, const Tensor& to) {
  std::vector<Tensor> parts;
  std::vector<const void*> in;
  for (const Collective* c : ranks) {
    parts.push_back(OnHost(c->x.Flat(begin, elements)));
    in.push_back(parts.back().raw());
  }
  const Tensor out = to.Flat(begin, elements);
  const Tensor sum = to.on_gpu() ? Tensor::Empty(out.shape(), out.dtype(), {}) : out;
  ReduceInOrder(in, sum.raw(), elements, out.dtype(), ranks[0]->op);
  if (to.on_gpu()) out.CopyFrom(sum);
}

void Gather(Ranks ranks) {
  const Collective& first = *ranks[0];
  for (int r = 0; r < static_cast<int>(ranks.size()); ++r) {
    const int64_t begin = first.offset(r), n = first.counts[r];
    for (const Collective* to : ranks) {
      if (to != ranks[r]) to->x.Flat(begin, n).CopyFrom(ranks[r]->x.Flat(begin, n));
    }
  }
}

void Exchange(Ranks ranks) {
  for (int to = 0; to < static_cast<int>(ranks.size()); ++to) {
    int64_t at = 0;
    for (int from = 0; from < static_cast<int>(ranks.size()); ++from) {
      const Collective& c = *ranks[from];
      const int64_t n = c.counts[to];
      CHECK_EQ(n, ranks[to]->out_counts[from])
          << c.label << ": elements from rank " << from << " to rank " << to;
      ranks[to]->out.Flat(at, n).CopyFrom(c.x.Flat(c.offset(to), n));
      at += n;
    }
  }
}

}  // namespace

void SettleTensors(const Collective& collective) {
  for (const Tensor* x : {&collective.x, &collective.out}) {
    if (!x->defined() || !x->on_gpu()) continue;
    cuda::UseDevice(x->device().index);
    cuda::Synchronize();
  }
}

void CarryOut(Ranks ranks) {
  const Collective& first = *ranks[0];
  switch (first.kind) {
    case Collective::Kind::kAllReduce:
      Reduce(ranks, 0, first.x.size(), first.x);
      for (const Collective* c : ranks.subspan(1)) c->x.CopyFrom(first.x);
      break;
    case Collective::Kind::kReduceScatter:
      for (size_t r = 0; r < ranks.size(); ++r) {
        Reduce(ranks, first.offset(static_cast<int>(r)), first.counts[r], ranks[r]->x);
      }
      break;
    case Collective::Kind::kAllGather:
      Gather(ranks);
      break;
    case Collective::Kind::kBroadcast:
      for (const Collective* c : ranks) {
        if (c != ranks[first.peer]) c->x.CopyFrom(ranks[first.peer]->x);
      }
      break;
    case Collective::Kind::kAllToAll:
      Exchange(ranks);
      break;
    default:
      break;
  }
  SettleTensors(first);
}

void CarryOutMessage(const Collective& send, const Collective& receive) {
  receive.x.CopyFrom(send.x);
  SettleTensors(send);
  SettleTensors(receive);
}

}  // namespace lt2
