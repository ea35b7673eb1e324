// dq = scale sum ds k from the ds that the gradients of keys left (attention_score_tiles.cuh): a
// block sums 256 queries, a warpgroup 128 of them, while tiles of keys stream.
#include "kernels/cuda/attention_gradients.cuh"
#include "kernels/cuda/attention_score_tiles.cuh"
#include "kernels/cuda/attention_tensor_core.h"

namespace lt2::cuda {
namespace {

struct QuerySums {
  AttentionProblem problem;
  CUtensorMap k_map;
  ScoreTiles ds;
  Items items;
  int64_t stride;  // of dq, from token to token
  int size;
  bf16* dq;
  bool add;
};

template <class Shape>
struct SumsTile : Shape {
  static constexpr int kRows = 256, kBlocks = kRows / 64;  // of queries
  static constexpr int kPlaces = 4, kKeysAt = kBlocks * ScoreTiles::kBytes;
  static constexpr int kPlaceBytes = kKeysAt + Shape::kStreamBytes;
  static constexpr int kItemAt = kPlaces * kPlaceBytes;
  static constexpr int kBarriersAt = kItemAt + sizeof(Item);
  static constexpr int kSharedBytes =
      kBarriersAt + Ring<1>::kBytes + Ring<kPlaces>::kBytes + kPanelAlignment;
};

template <class Tile>
struct Rings {
  Ring<1> item;
  Ring<Tile::kPlaces> stream;

  __device__ explicit Rings(uint32_t shared)
      : item{shared + Tile::kBarriersAt}, stream{item.barriers + Ring<1>::kBytes} {}
};

// Blocks of 64 of the item's document: queries from `begin` on, of which [low, end) are wanted, and
// keys [key_begin, end) that those see.
struct BlocksOfItem {
  int begin, low, end, key_begin, reach;
  template <int kBlocks>
  static __device__ BlocksOfItem Of(const AttentionProblem& problem, const Item& item) {
    const int begin = (item.first - item.begin) / 64, reach = (problem.window + 62) / 64;
    const int low = max(begin, (max(item.begin, problem.query_begin) - item.begin) / 64);
    const int last = (min(item.end, problem.query_end) - item.begin + 63) / 64;
    return {begin, low, min(begin + kBlocks, last), max(0, low - reach), reach};
  }
  __device__ bool See(int query, int key) const {
    return query >= low && query < end && key <= query && query - key <= reach;
  }
};

template <class Tile>
__device__ inline void CopyAhead(const QuerySums& args, uint32_t shared, Rings<Tile> ring) {
  const bool leads = threadIdx.x % 32 == 0;
  const int share = args.problem.heads / args.problem.groups;
  auto* for_readers = reinterpret_cast<Item*>(SharedPointer(shared + Tile::kItemAt));
  ItemQueue<Tile::kRows> queue(args.items);
  while (true) {
    const Item item = queue.Next();
    ring.item.WaitEmpty();
    if (leads) {
      *for_readers = item;
      ring.item.Expect(0);
    }
    if (item.head < 0) return;
    ring.item.Next();
    const auto blocks = BlocksOfItem::Of<Tile::kBlocks>(args.problem, item);
    for (int key = blocks.key_begin; key < blocks.end; ++key) {
      ring.stream.WaitEmpty();
      if (leads) {
        const uint32_t to = shared + ring.stream.place * Tile::kPlaceBytes;
        const uint32_t full = ring.stream.Full(ring.stream.place);
        int seen = 0;
        for (int i = 0; i < Tile::kBlocks; ++i) seen += blocks.See(blocks.begin + i, key);
        ring.stream.Expect(Tile::kStreamBytes + seen * ScoreTiles::kBytes);
        CopyPanels<Tile::kWidth, Tile::kStream>(to + Tile::kKeysAt, args.k_map, full,
                                                item.head / share, item.begin + 64 * key);
        for (int i = 0; i < Tile::kBlocks; ++i) {
          const int query = blocks.begin + i;
          if (!blocks.See(query, key)) continue;
          CopyBytes(to + i * ScoreTiles::kBytes,
                    args.ds.At(item.head, item.tiles_before, query, key), full, ScoreTiles::kBytes);
        }
      }
      ring.stream.Next();
    }
  }
}

// Queues sums += a b; a: a tile of ds; b: its keys.
template <class Tile>
__device__ inline void QueueSums(RowSums<Tile>& sums, uint32_t a, uint32_t b) {
  auto& flat = reinterpret_cast<float(&)[Tile::kWidth / 2]>(sums);
  const uint64_t of_a = Descriptor(a, ScoreTiles::kBytes);
  const uint64_t of_b = Descriptor(b, Tile::kStream * kPanelRowBytes);
#pragma unroll
  for (int k = 0; k < Tile::kStream / 16; ++k) {
    const int step = k * 16 * kPanelRowBytes / 16;
    MultiplyTransposed(flat, of_a + step, of_b + step, true);
  }
}

template <class Tile>
__device__ inline void Compute(const QuerySums& args, uint32_t shared, Rings<Tile> ring) {
  constexpr int kBlocks = Tile::kBlocks / 2;  // of a group
  static_assert(kBlocks == 2);
  const int first_block = WarpgroupIndex() * kBlocks;
  RowSums<Tile> low, high;
  while (true) {
    ring.item.WaitFull();
    const Item item = *reinterpret_cast<const Item*>(SharedPointer(shared + Tile::kItemAt));
    if (item.head < 0) return;
    ring.item.Release(0);
    ring.item.Next();
    SetZero<Tile>(low);
    SetZero<Tile>(high);
    const auto blocks = BlocksOfItem::Of<Tile::kBlocks>(args.problem, item);
    const int query = blocks.begin + first_block;
    int held = -1;  // the place of the tiles that are still being added
    for (int key = blocks.key_begin; key < blocks.end; ++key) {
      const int place = ring.stream.place;
      const uint32_t ds = shared + place * Tile::kPlaceBytes + first_block * ScoreTiles::kBytes;
      const uint32_t k = shared + place * Tile::kPlaceBytes + Tile::kKeysAt;
      ring.stream.WaitFull();
      ring.stream.Next();
      const bool low_sees = blocks.See(query, key), high_sees = blocks.See(query + 1, key);
      if (low_sees && high_sees) {
        BeginProducts();
        QueueSums<Tile>(low, ds, k);
        QueueSums<Tile>(high, ds + ScoreTiles::kBytes, k);
        CommitProducts();
        WaitForProducts<1>();
      } else {
        BeginProducts();
        if (low_sees) QueueSums<Tile>(low, ds, k);
        if (high_sees) QueueSums<Tile>(high, ds + ScoreTiles::kBytes, k);
        CommitProducts();
        WaitForProducts<0>();
      }
      if (held >= 0) ring.stream.Release(held);
      held = place;
    }
    WaitForProducts<0>();
    Settle(low);
    Settle(high);
    ring.stream.Release(held);
    bf16* dq = args.dq + item.head * args.size;
    const int query_begin = args.problem.query_begin;
    const int row = item.first - query_begin + 64 * first_block + QueryOfLane();
    const int end = min(item.end, args.problem.query_end) - query_begin;
    const OfRows<Tile> factor = Everywhere<Tile>(args.problem.scale);
    StoreRows<Tile>(low, factor, row, end, dq, args.stride, args.size, args.add, kSecondQuery);
    StoreRows<Tile>(high, factor, row + 64, end, dq, args.stride, args.size, args.add,
                    kSecondQuery);
  }
}

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    AttentionWarpgroupQuerySums(const __grid_constant__ QuerySums args) {
  const uint32_t shared = AlignedShared();
  const Rings<Tile> ring(shared);
  if (threadIdx.x == 0) {
    ring.item.Init(Tile::kWarps);
    ring.stream.Init(Tile::kWarps);
    PublishBarriers();
  }
  __syncthreads();
  ShareWork<56, 224>([&] { CopyAhead<Tile>(args, shared, ring); },
                     [&] { Compute<Tile>(args, shared, ring); });
}

template <class Tile>
void Run(const Stream& stream, const QuerySums& sums) {
  AllowShared(AttentionWarpgroupQuerySums<Tile>, Tile::kSharedBytes);
  AttentionWarpgroupQuerySums<Tile>
      <<<BlocksOf(sums.items, Tile::kRows), Tile::kThreads, Tile::kSharedBytes, Handle(stream)>>>(
          sums);
  CheckLaunch("attention backward");
}

}  // namespace

void WarpgroupQuerySums(const Stream& stream, const AttentionBackwardArgs& args,
                        const ScoreTiles& ds, int heads, int* taken) {
  Items items = ItemsOf(args.documents, QueriesOf(args.documents), heads, true, taken);
  items.head_begin = ds.head_begin;
  items.tiles_before = ds.tiles_before;
  const HeadRows dq = RowsOf(args.dq_NHD);
  const QuerySums sums{ProblemOf(args.q_NHD, args.k_NGD, args.options, args.documents),
                       PanelMap(args.k_NGD, 64),
                       ds,
                       items,
                       dq.stride,
                       dq.size,
                       Data<bf16>(args.dq_NHD),
                       args.accumulate_dq};
  if (dq.size <= 64) return Run<SumsTile<PanelTile<64, 64>>>(stream, sums);
  Run<SumsTile<PanelTile<128, 64>>>(stream, sums);
}

}  // namespace lt2::cuda
