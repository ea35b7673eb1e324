// Gradients of attention (attention_gradients.cuh) with products of a warpgroup: one warp copies
// ahead, and two warpgroups compute, each at its own pace, so that one's exponentials overlap with
// the other's products; sums of one streamed tile are still being added to when the scores of the
// next begin.
#include "kernels/attention_workspace.h"
#include "kernels/cuda/attention_gradients.cuh"
#include "kernels/cuda/attention_query_stats.cuh"
#include "kernels/cuda/attention_score_tiles.cuh"
#include "kernels/cuda/attention_tensor_core.h"
#include "kernels/cuda/scratch.h"

namespace lt2::cuda {
namespace {

struct PanelBackward : Backward {
  CUtensorMap a_map, b_map, x_map, y_map;
  CUtensorMap stats_map;  // floats
  ScoreTiles ds;          // for dq, from the gradients of keys
  Items items;
};

template <class Shape>
struct Gradients : Shape {
  static constexpr bool kQueries = false, kWithDa = true, kWithDb = true;
  static constexpr int kPlaces = 4, kPlaceBytes = 2 * Shape::kStreamBytes;
  static constexpr int kStreamAt = 2 * Shape::kRowBytes;              // x, y of each place
  static constexpr int kStatsAt = kStreamAt + kPlaces * kPlaceBytes;  // of streamed queries
  static constexpr int kStatsBytes = 8 * Shape::kStream;
  static constexpr int kItemAt = kStatsAt + kPlaces * kStatsBytes;
  static constexpr int kBarriersAt = kItemAt + sizeof(Item);
  static constexpr int kSharedBytes =
      kBarriersAt + Ring<1>::kBytes + Ring<kPlaces>::kBytes + kPanelAlignment;
};

// Those of a block: a and b (with the item), and what streams.
template <class Tile>
struct Rings {
  Ring<1> rows;
  Ring<Tile::kPlaces> stream;

  __device__ explicit Rings(uint32_t shared)
      : rows{shared + Tile::kBarriersAt}, stream{rows.barriers + Ring<1>::kBytes} {}
};

// What streams past an item: tiles from `first` on, once for each of `heads` heads from `head` on.
struct StreamedTiles {
  int first, tiles, head, heads;
};
template <class Tile>
__device__ inline StreamedTiles TilesOf(const AttentionProblem& problem, const Item& item) {
  constexpr int kStream = Tile::kStream;
  const int share = problem.heads / problem.groups;
  const int row_end = min(item.first + Tile::kRows, item.end);
  const int query_end = min(min(item.end, row_end - 1 + problem.window), problem.query_end);
  const int before = max(0, problem.query_begin - item.first) / kStream;  // tiles without queries
  const int first = item.first + before * kStream;
  const bool none = item.end <= problem.query_begin;  // nor is there room for ds of the document
  const int tiles = none ? 0 : max(0, query_end - first + kStream - 1) / kStream;
  return {first, tiles, item.head * share, share};
}

template <class Tile>
__device__ inline void CopyAhead(const PanelBackward& args, uint32_t shared, Rings<Tile> ring) {
  const bool leads = threadIdx.x % 32 == 0;
  auto* for_readers = reinterpret_cast<Item*>(SharedPointer(shared + Tile::kItemAt));
  const auto copy_tile = [&](int head, int token) {
    const int row = token - args.problem.query_begin;
    const int place = ring.stream.place;
    const uint32_t to = shared + Tile::kStreamAt + place * Tile::kPlaceBytes;
    const uint32_t full = ring.stream.Full(place);
    ring.stream.Expect(Tile::kPlaceBytes + Tile::kStatsBytes);
    CopyPanels<Tile::kWidth, Tile::kStream>(to, args.x_map, full, head, row);
    CopyPanels<Tile::kWidth, Tile::kStream>(to + Tile::kStreamBytes, args.y_map, full, head, row);
    // The copy engine wants 16 bytes, two rows, to divide where a box begins: what begins at an odd
    // row is taken from the copy that lies a row later.
    const int odd = row & 1;  // of rows before the first one too
    CopyBox(shared + Tile::kStatsAt + place * Tile::kStatsBytes, args.stats_map, full,
            2 * (row + odd), head + odd * args.problem.heads);
  };
  ItemQueue<Tile::kRows> queue(args.items);
  while (true) {
    const Item item = queue.Next();  // readers are some tiles behind
    ring.rows.WaitEmpty();
    if (leads) {
      *for_readers = item;
      ring.rows.Expect(item.head < 0 ? 0 : 2 * Tile::kRowBytes);
      if (item.head >= 0) {
        const uint32_t full = ring.rows.Full(0);
        CopyGroups<Tile>(shared, args.a_map, full, item.head, item.first);
        CopyGroups<Tile>(shared + Tile::kRowBytes, args.b_map, full, item.head, item.first);
      }
    }
    if (item.head < 0) return;
    ring.rows.Next();
    const StreamedTiles streamed = TilesOf<Tile>(args.problem, item);
    for (int head = 0; head < streamed.heads; ++head) {
      for (int tile = 0; tile < streamed.tiles; ++tile) {
        ring.stream.WaitEmpty();
        if (leads) copy_tile(streamed.head + head, streamed.first + tile * Tile::kStream);
        ring.stream.Next();
      }
    }
  }
}

// The ages of keys when queries see them, over the rows of a group, `first` on, and a streamed
// tile at `here`.
template <class Tile>
struct Ages {
  int least, most;
  __device__ Ages(int first, int here)
      : least(here - first - kRest), most(here + Tile::kStream - 1 - first) {}
  __device__ bool None(int window) const { return most < 0 || least >= window; }
  __device__ bool All(int window) const { return least >= 0 && most < window; }

 private:
  static constexpr int kRest = Tile::kGroupRows - 1;
};

// A column is a query of this document only where it is one of the first `columns`.
template <class Tile>
__device__ inline void CutColumns(Scores<Tile>& p, int columns) {
#pragma unroll
  for (int n = 0; n < Tile::kStream / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (8 * n + threadIdx.x % 4 * 2 + i % 2 >= columns) p[0][n][i] = 0;
    }
  }
}

template <class Tile>
__device__ inline void KeyGradients(const PanelBackward& args, uint32_t shared, Rings<Tile> ring) {
  const AttentionProblem& problem = args.problem;
  const int in_item = WarpgroupIndex() * Tile::kGroupRows;
  const int lane_row = threadIdx.x / 32 * Tile::kWarpRows + threadIdx.x % 32 / 4;
  const uint32_t k = shared + WarpgroupIndex() * Tile::kGroupBytes, v = k + Tile::kRowBytes;
  const RowStats<Tile> unused = {};
  RowSums<Tile> dk, dv;
  Scores<Tile> p, dp;
  PackedScores<Tile> packed_p, packed_ds;
  // What is seldom needed is read again: registers are scarce.
  const volatile Item& again =
      *reinterpret_cast<const Item*>(SharedPointer(shared + Tile::kItemAt));
  while (true) {
    ring.rows.WaitFull();
    const Item item = *reinterpret_cast<const Item*>(SharedPointer(shared + Tile::kItemAt));
    if (item.head < 0) return;
    const int first = item.first + in_item, row = item.first + lane_row;
    SetZero<Tile>(dk);
    SetZero<Tile>(dv);
    const StreamedTiles streamed = TilesOf<Tile>(problem, item);
    int held = -1, head = streamed.head;
    for (int at = 0, tile = 0; at < streamed.heads * streamed.tiles; ++at, ++tile) {
      if (tile == streamed.tiles) tile = 0, ++head;
      const int here = streamed.first + tile * Tile::kStream, place = ring.stream.place;
      const Ages<Tile> ages(first, here);
      ring.stream.WaitFull();
      ring.stream.Next();
      if (first >= item.end || ages.None(problem.window)) {
        ring.stream.Release(place);
        continue;
      }
      const uint32_t x = shared + Tile::kStreamAt + place * Tile::kPlaceBytes;
      const uint32_t y = x + Tile::kStreamBytes;
      const auto* columns = reinterpret_cast<const float2*>(
          SharedPointer(shared + Tile::kStatsAt + place * Tile::kStatsBytes));
      BeginProducts();
      QueueScores<Tile>(p, k, x);
      CommitProducts();
      QueueScores<Tile>(dp, v, y);
      CommitProducts();
      WaitForProducts<1>();
      Settle(p);
      if (held >= 0) ring.stream.Release(held);
      held = place;
      Probabilities<Tile>(p, problem.scale * kLog2E, unused, columns);
      if (!ages.All(problem.window)) Mask<Tile>(p, row - here, problem.window);
      if (here + Tile::kStream > item.end) CutColumns<Tile>(p, item.end - here);
      Pack<Tile>(packed_p, p);
      BeginProducts();
      QueueRows<Tile>(dv, packed_p, y);
      CommitProducts();
      WaitForProducts<1>();
      Settle(dp);
      ScoreGradients<Tile>(p, dp, unused, columns);
      Pack<Tile>(packed_ds, p);
      if (args.ds.data != nullptr) {
        const int begin = again.begin;
        StoreScores<Tile>(
            args.ds.At(head, again.tiles_before, (here - begin) / 64, (first - begin) / 64),
            packed_ds);
      }
      BeginProducts();
      QueueRows<Tile>(dk, packed_ds, x);
      CommitProducts();
      WaitForProducts<1>();  // packed_p's registers are free
      Settle(packed_p);
    }
    WaitForProducts<0>();
    Settle(dk);
    Settle(dv);
    if (held >= 0) ring.stream.Release(held);
    ring.rows.Release(0);
    ring.rows.Next();
    StoreGradients<Tile>(args, item.head, row, item.end, dk, dv);
  }
}

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    AttentionWarpgroupBackward(const __grid_constant__ PanelBackward args) {
  const uint32_t shared = AlignedShared();
  const Rings<Tile> ring(shared);
  if (threadIdx.x == 0) {
    ring.rows.Init(Tile::kWarps);
    ring.stream.Init(Tile::kWarps);
    PublishBarriers();
  }
  __syncthreads();
  ShareWork<24, 240>([&] { CopyAhead<Tile>(args, shared, ring); },
                     [&] { KeyGradients<Tile>(args, shared, ring); });
}

// For `heads` groups of heads, from `head_begin` on.
template <class Tile>
void Run(const Stream& stream, const Backward& backward, const AttentionBackwardArgs& args,
         const ScoreTiles& ds, int head_begin, int heads, int* taken) {
  const auto rows = [](const Tensor& x) { return PanelMap(x, Tile::kGroupRows); };
  const auto tiles = [](const Tensor& x) { return PanelMap(x, Tile::kStream); };
  Items items =
      ItemsOf(args.documents, {0, args.documents.tokens()}, heads, /*late_first=*/false, taken);
  items.head_begin = head_begin;
  if (ds.data != nullptr) items.tiles_before = ds.tiles_before;
  const PanelBackward panels{
      backward,
      rows(args.k_NGD),
      rows(args.v_NGE),
      tiles(args.q_NHD),
      tiles(args.do_NHE),
      FloatMap(backward.stats_HN, 2 * args.q_NHD.dim(1), 2 * args.q_NHD.dim(0) + 2,
               2 * backward.stats_stride, 2 * Tile::kStream),
      ds,
      items};
  AllowShared(AttentionWarpgroupBackward<Tile>, Tile::kSharedBytes);
  AttentionWarpgroupBackward<Tile>
      <<<BlocksOf(items, Tile::kRows), Tile::kThreads, Tile::kSharedBytes, Handle(stream)>>>(
          panels);
  CheckLaunch("attention backward");
}

template <int kWidth>
void RunBackward(const Stream& stream, const AttentionBackwardArgs& args) {
  using Shape = PanelTile<kWidth, 64>;
  const AttentionWorkspace plan(args);
  const int heads = static_cast<int>(args.q_NHD.dim(1)),
            groups = static_cast<int>(args.k_NGD.dim(1));
  const int share = heads / groups;
  // ds, which 16 bytes divide, then stats, counters, and where the tiles of documents begin.
  auto* scores = ScratchFor<unsigned char>(stream, plan.bytes);
  auto* stats_HN = reinterpret_cast<float2*>(scores + plan.tile_bytes);
  int *taken = reinterpret_cast<int*>(stats_HN + plan.stats), *tiles_before = taken + plan.counters;
  RunQueryStats<bf16>(stream, args, kLog2E, stats_HN, plan.stats_stride, /*twice=*/true,
                      {.zeros = taken,
                       .zero_count = static_cast<int>(plan.counters),
                       .tiles_before = plan.keeps_tiles ? tiles_before : nullptr,
                       .cu_seqlens = Data<int32_t>(args.documents.cu_seqlens()),
                       .documents = static_cast<int>(args.documents.capacity()),
                       .query_begin = static_cast<int>(args.documents.query_begin()),
                       .query_end = static_cast<int>(args.documents.query_end())});
  ScoreTiles ds{plan.keeps_tiles ? scores : nullptr, tiles_before, plan.tiles, 0};
  const Backward keys = OfKeys(args, stats_HN, plan.stats_stride);
  for (int group = 0; group < groups; group += plan.groups_a_pass) {
    const int many = std::min(plan.groups_a_pass, groups - group);
    ds.head_begin = group * share;
    Run<Gradients<Shape>>(stream, keys, args, ds, group, many, taken++);
    if (plan.keeps_tiles) WarpgroupQuerySums(stream, args, ds, many * share, taken++);
  }
}

}  // namespace

void WarpgroupAttentionBackward(const Stream& stream, const AttentionBackwardArgs& args) {
  if (std::max(args.q_NHD.dim(2), args.v_NGE.dim(2)) <= 64) return RunBackward<64>(stream, args);
  RunBackward<128>(stream, args);
}

}  // namespace lt2::cuda
