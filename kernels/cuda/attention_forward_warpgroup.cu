// Shah et al.: "FlashAttention-3" (2024): two warpgroups take turns at queueing products, so that
// one's exponentials overlap with the other's products; and each computes the scores of the next
// keys while this tile's values are summed.
#include "kernels/cuda/attention_panels.cuh"
#include "kernels/cuda/attention_softmax.cuh"
#include "kernels/cuda/attention_tensor_core.h"
#include "kernels/cuda/scratch.h"

namespace lt2::cuda {
namespace {

struct PanelForward : Forward {
  CUtensorMap q_map, k_map, v_map;
  Items items;
};

template <class Shape>
struct ForwardTile : Shape {
  static constexpr int kPlaces = 2;  // of keys, and of values
  static constexpr int kKeysAt = Shape::kRowBytes;
  static constexpr int kValuesAt = kKeysAt + kPlaces * Shape::kStreamBytes;
  static constexpr int kItemAt = kValuesAt + kPlaces * Shape::kStreamBytes;
  static constexpr int kBarriersAt = kItemAt + sizeof(Item);
  static constexpr int kSharedBytes =
      kBarriersAt + Ring<1>::kBytes + 2 * Ring<kPlaces>::kBytes + kPanelAlignment;
};

// Those of a block: queries (with the item), keys, values.
template <class Tile>
struct Rings {
  Ring<1> queries;
  Ring<Tile::kPlaces> keys, values;

  __device__ explicit Rings(uint32_t shared)
      : queries{shared + Tile::kBarriersAt},
        keys{queries.barriers + Ring<1>::kBytes},
        values{keys.barriers + Ring<Tile::kPlaces>::kBytes} {}
};

// Tiles of keys from the diagonal down: tile t begins at first - kStream t.
template <class Tile>
__device__ inline int KeyTiles(const Item& item, int window) {
  static_assert(Tile::kStream == Tile::kRows);
  const int before = item.first - max(item.begin, item.first - window + 1);
  return 1 + (before + Tile::kStream - 1) / Tile::kStream;
}

template <class Tile>
__device__ inline void CopyAhead(const PanelForward& args, uint32_t shared, Rings<Tile> ring) {
  const bool leads = threadIdx.x % 32 == 0;
  const int share = args.problem.heads / args.problem.groups;
  auto* for_readers = reinterpret_cast<Item*>(SharedPointer(shared + Tile::kItemAt));
  const auto copy = [&](auto& of, int at, const CUtensorMap& map, int group, int key) {
    of.WaitEmpty();
    if (leads) {
      of.Expect(Tile::kStreamBytes);
      CopyPanels<Tile::kWidth, Tile::kStream>(shared + at + of.place * Tile::kStreamBytes, map,
                                              of.Full(of.place), group, key);
    }
    of.Next();
  };
  ItemQueue<Tile::kRows> queue(args.items);
  while (true) {
    const Item item = queue.Next();  // readers are some tiles behind
    ring.queries.WaitEmpty();
    if (leads) {
      *for_readers = item;
      ring.queries.Expect(item.head < 0 ? 0 : Tile::kRowBytes);
      if (item.head >= 0) {
        CopyGroups<Tile>(shared, args.q_map, ring.queries.Full(0), item.head,
                         item.first - args.problem.query_begin);
      }
    }
    if (item.head < 0) return;
    ring.queries.Next();
    const int tiles = KeyTiles<Tile>(item, args.problem.window), group = item.head / share;
    for (int tile = 0; tile < tiles; ++tile) {
      const int key = item.first - tile * Tile::kStream;
      copy(ring.keys, Tile::kKeysAt, args.k_map, group, key);
      copy(ring.values, Tile::kValuesAt, args.v_map, group, key);
    }
  }
}

// Warpgroups queue their products in turn.
__device__ inline void WaitForTurn(int group) { SyncBarrier(1 + group, 256); }
__device__ inline void PassTurn(int group) { PassBarrier(2 - group, 256); }

template <class Tile>
__device__ inline void Compute(const PanelForward& args, uint32_t shared, Rings<Tile> ring) {
  const AttentionProblem& problem = args.problem;
  const int group = WarpgroupIndex(), warp = threadIdx.x / 32;
  const uint32_t q = shared + group * Tile::kGroupBytes;
  const auto keys = [&](int place) { return shared + Tile::kKeysAt + place * Tile::kStreamBytes; };
  const auto values = [&](int place) {
    return shared + Tile::kValuesAt + place * Tile::kStreamBytes;
  };
  RowSums<Tile> o;
  Scores<Tile> s;
  PackedScores<Tile> p;
  if (group == 1) PassTurn(group);
  while (true) {
    ring.queries.WaitFull();
    const Item item = *reinterpret_cast<const Item*>(SharedPointer(shared + Tile::kItemAt));
    if (item.head < 0) break;
    const int tiles = KeyTiles<Tile>(item, problem.window);
    const int first = item.first + warp * Tile::kWarpRows, last = first + Tile::kWarpRows - 1;
    const int row = first + threadIdx.x % 32 / 4;
    OfRows<Tile> m = Everywhere<Tile>(kMasked), l = Everywhere<Tile>(0), shrink;
    const auto softmax = [&](int tile) {
      const int key = item.first - tile * Tile::kStream, key_last = key + Tile::kStream - 1;
      if (key_last > first || key <= last - problem.window) Mask<Tile>(s, key, row, problem.window);
      return Softmax<Tile>(s, problem.scale * kLog2E, m, l, shrink);
    };

    SetZero<Tile>(o);
    ring.keys.WaitFull();
    BeginProducts();
    QueueScores<Tile>(s, q, keys(ring.keys.place));
    CommitProducts();
    WaitForProducts<0>();
    Settle(s);
    ring.keys.Release(ring.keys.place);
    ring.keys.Next();
    softmax(0);
    Pack<Tile>(p, s);
    for (int tile = 1; tile < tiles; ++tile) {
      ring.keys.WaitFull();
      WaitForTurn(group);
      BeginProducts();
      QueueScores<Tile>(s, q, keys(ring.keys.place));
      CommitProducts();
      ring.values.WaitFull();
      QueueRows<Tile>(o, p, values(ring.values.place));
      CommitProducts();
      PassTurn(group);
      WaitForProducts<1>();
      Settle(s);
      ring.keys.Release(ring.keys.place);
      ring.keys.Next();
      if (softmax(tile)) {  // a branch, or the wait would be moved before the exponentials
        WaitForProducts<0>();
        Settle(o);
        Rescale<Tile>(o, shrink);
      }
      WaitForProducts<0>();
      Settle(o);
      ring.values.Release(ring.values.place);
      ring.values.Next();
      Pack<Tile>(p, s);
    }
    ring.queries.Release(0);
    ring.queries.Next();
    ring.values.WaitFull();
    BeginProducts();
    QueueRows<Tile>(o, p, values(ring.values.place));
    CommitProducts();
    WaitForProducts<0>();
    Settle(o);
    ring.values.Release(ring.values.place);
    ring.values.Next();
    FinishRows<Tile>(args, item.head, row - problem.query_begin,
                     min(item.end, problem.query_end) - problem.query_begin, m, l, o);
  }
  if (group == 0) WaitForTurn(group);  // the last that was passed
}

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    AttentionWarpgroupForward(const __grid_constant__ PanelForward args) {
  const uint32_t shared = AlignedShared();
  const Rings<Tile> ring(shared);
  if (threadIdx.x == 0) {
    ring.queries.Init(Tile::kWarps);
    ring.keys.Init(Tile::kWarps);
    ring.values.Init(Tile::kWarps);
    PublishBarriers();
  }
  __syncthreads();
  ShareWork<40, 232>([&] { CopyAhead<Tile>(args, shared, ring); },
                     [&] { Compute<Tile>(args, shared, ring); });
}

template <class Tile>
void Run(const Stream& stream, const AttentionForwardArgs& args, int* taken) {
  const PanelForward forward{
      ForwardOf(args), PanelMap(args.q_NHD, Tile::kGroupRows), PanelMap(args.k_NGD, Tile::kStream),
      PanelMap(args.v_NGE, Tile::kStream),
      ItemsOf(args.documents, QueriesOf(args.documents), args.q_NHD.dim(1), true, taken)};
  AllowShared(AttentionWarpgroupForward<Tile>, Tile::kSharedBytes);
  AttentionWarpgroupForward<Tile><<<BlocksOf(forward.items, Tile::kRows), Tile::kThreads,
                                    Tile::kSharedBytes, Handle(stream)>>>(forward);
  CheckLaunch("attention");
}

}  // namespace

void WarpgroupAttentionForward(const Stream& stream, const AttentionForwardArgs& args) {
  int* taken = ScratchFor<int>(stream, 1);
  LT2_CUDA_CHECK(cudaMemsetAsync(taken, 0, sizeof(int), Handle(stream)));
  if (std::max(args.q_NHD.dim(2), args.v_NGE.dim(2)) <= 64) {
    return Run<ForwardTile<PanelTile<64, 128>>>(stream, args, taken);
  }
  Run<ForwardTile<PanelTile<128, 128>>>(stream, args, taken);
}

}  // namespace lt2::cuda
