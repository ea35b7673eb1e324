// Gradients of attention (attention_gradients.cuh) with products of a warpgroup: one warp copies
// ahead, and two warpgroups compute, each at its own pace, so that one's exponentials overlap with
// the other's products; sums of one streamed tile are still being added to when the scores of the
// next begin.
#include "kernels/cuda/attention_gradients.cuh"
#include "kernels/cuda/attention_panels.cuh"
#include "kernels/cuda/attention_tensor_core.h"

namespace lt2::cuda {
namespace {

struct PanelBackward : Backward {
  CUtensorMap a_map, b_map, x_map, y_map;
  CUtensorMap stats_map;  // floats
  Items items;
};

template <Stay kStay, class Shape>
struct Gradients : Shape {
  static constexpr bool kQueries = kStay == Stay::kQueries, kWithDa = true, kWithDb = !kQueries;
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

// What streams past an item: tile t begins at first + t step, and all of them come once for each of
// `heads` heads from `head` on.
struct StreamedTiles {
  int first, step, tiles, head, heads;
};
template <class Tile>
__device__ inline StreamedTiles TilesOf(const AttentionProblem& problem, const Item& item) {
  constexpr int kStream = Tile::kStream;
  const int share = problem.heads / problem.groups;
  const int row_end = min(item.first + Tile::kRows, item.end);
  if constexpr (Tile::kQueries) {  // from the diagonal down
    const int key_end = item.first + (row_end - item.first + kStream - 1) / kStream * kStream;
    const int key_begin = max(item.begin, item.first - problem.window + 1);
    return {key_end - kStream, -kStream, (key_end - key_begin + kStream - 1) / kStream,
            item.head / share, 1};
  }
  const int query_end = min(item.end, row_end - 1 + problem.window);
  return {item.first, kStream, (query_end - item.first + kStream - 1) / kStream, item.head * share,
          share};
}

template <class Tile>
__device__ inline void CopyAhead(const PanelBackward& args, uint32_t shared, Rings<Tile> ring) {
  const bool leads = threadIdx.x % 32 == 0;
  auto* for_readers = reinterpret_cast<Item*>(SharedPointer(shared + Tile::kItemAt));
  const auto copy_tile = [&](int head, int row) {
    const int place = ring.stream.place;
    const uint32_t to = shared + Tile::kStreamAt + place * Tile::kPlaceBytes;
    const uint32_t full = ring.stream.Full(place);
    ring.stream.Expect(Tile::kPlaceBytes + (Tile::kQueries ? 0 : Tile::kStatsBytes));
    CopyPanels<Tile::kWidth, Tile::kStream>(to, args.x_map, full, head, row);
    CopyPanels<Tile::kWidth, Tile::kStream>(to + Tile::kStreamBytes, args.y_map, full, head, row);
    if constexpr (!Tile::kQueries) {
      CopyBox(shared + Tile::kStatsAt + place * Tile::kStatsBytes, args.stats_map, full, 2 * row,
              head);
    }
  };
  ItemQueue queue(args.items);
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
        if (leads) copy_tile(streamed.head + head, streamed.first + tile * streamed.step);
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
      : least(Tile::kQueries ? first - here - Tile::kStream + 1 : here - first - kRest),
        most(Tile::kQueries ? first + kRest - here : here + Tile::kStream - 1 - first) {}
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
__device__ inline void QueryGradient(const PanelBackward& args, uint32_t shared, Rings<Tile> ring) {
  const AttentionProblem& problem = args.problem;
  const int in_item = WarpgroupIndex() * Tile::kGroupRows;
  const int lane_row = threadIdx.x / 32 * Tile::kWarpRows + threadIdx.x % 32 / 4;
  const uint32_t of_group = shared + WarpgroupIndex() * Tile::kGroupBytes;
  HeldRows<Tile> q, dout;
  RowSums<Tile> dq, unused;
  Scores<Tile> p, dp;
  Packed<Tile> packed;
  while (true) {
    ring.rows.WaitFull();
    const Item item = *reinterpret_cast<const Item*>(SharedPointer(shared + Tile::kItemAt));
    if (item.head < 0) return;
    const int first = item.first + in_item, row = item.first + lane_row;
    const RowStats<Tile> stats = StatsOfRows<Tile>(args, item.head, row, item.end);
    Hold<Tile>(q, of_group);
    Hold<Tile>(dout, of_group + Tile::kRowBytes);
    ring.rows.Release(0);
    ring.rows.Next();
    SetZero<Tile>(dq);
    const StreamedTiles streamed = TilesOf<Tile>(problem, item);
    int held = -1;  // the place of the tile that is still being added
    for (int tile = 0; tile < streamed.tiles; ++tile) {
      const int here = streamed.first + tile * streamed.step, place = ring.stream.place;
      const Ages<Tile> ages(first, here);
      ring.stream.WaitFull();
      ring.stream.Next();
      if (first >= item.end || ages.None(problem.window)) {
        ring.stream.Release(place);
        continue;
      }
      const uint32_t x = shared + Tile::kStreamAt + place * Tile::kPlaceBytes;
      BeginProducts();
      QueueScores<Tile>(p, q, x);
      CommitProducts();
      QueueScores<Tile>(dp, dout, x + Tile::kStreamBytes);
      CommitProducts();
      WaitForProducts<1>();
      Settle(p);
      if (held >= 0) ring.stream.Release(held);
      held = place;
      Probabilities<Tile>(p, problem.scale * kLog2E, stats, nullptr);
      if (!ages.All(problem.window)) Mask<Tile>(p, row - here, problem.window);
      WaitForProducts<0>();
      Settle(dp);
      ScoreGradients<Tile>(p, dp, stats, nullptr);
      Pack<Tile>(packed, p);
      BeginProducts();
      QueueRows<Tile>(dq, packed, x);
      CommitProducts();
    }
    WaitForProducts<0>();
    Settle(dq);
    if (held >= 0) ring.stream.Release(held);
    StoreGradients<Tile>(args, item.head, row, item.end, dq, unused);
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
  Packed<Tile> packed_p, packed_ds;
  while (true) {
    ring.rows.WaitFull();
    const Item item = *reinterpret_cast<const Item*>(SharedPointer(shared + Tile::kItemAt));
    if (item.head < 0) return;
    const int first = item.first + in_item, row = item.first + lane_row;
    SetZero<Tile>(dk);
    SetZero<Tile>(dv);
    const StreamedTiles streamed = TilesOf<Tile>(problem, item);
    int held = -1;
    for (int at = 0, tile = 0; at < streamed.heads * streamed.tiles; ++at, ++tile) {
      if (tile == streamed.tiles) tile = 0;
      const int here = streamed.first + tile * streamed.step, place = ring.stream.place;
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
  ShareWork([&] { CopyAhead<Tile>(args, shared, ring); },
            [&] {
              if constexpr (Tile::kQueries) {
                QueryGradient<Tile>(args, shared, ring);
              } else {
                KeyGradients<Tile>(args, shared, ring);
              }
            });
}

template <class Tile>
void Run(const Stream& stream, const Backward& backward, const AttentionBackwardArgs& args,
         int* taken) {
  if (backward.da == nullptr && backward.db == nullptr) return;
  const bool queries = Tile::kQueries;
  const AttentionProblem& problem = backward.problem;
  const auto rows = [](const Tensor& x) { return PanelMap(x, Tile::kGroupRows); };
  const auto tiles = [](const Tensor& x) { return PanelMap(x, Tile::kStream); };
  const PanelBackward panels{
      backward, rows(queries ? args.q_NHD : args.k_NGD), rows(queries ? args.do_NHE : args.v_NGE),
      tiles(queries ? args.k_NGD : args.q_NHD), tiles(queries ? args.v_NGE : args.do_NHE),
      FloatMap(backward.stats_HN, problem.heads, 2 * args.q_NHD.dim(0), 2 * backward.stats_stride,
               2 * Tile::kStream),
      // Those with the most to stream begin first: late queries, early keys.
      ItemsOf(args.documents, queries ? problem.heads : problem.groups, queries, taken)};
  AllowShared(AttentionWarpgroupBackward<Tile>, Tile::kSharedBytes);
  AttentionWarpgroupBackward<Tile>
      <<<BlocksOf(panels.items), Tile::kThreads, Tile::kSharedBytes, Handle(stream)>>>(panels);
  CheckLaunch("attention backward");
}

}  // namespace

void WarpgroupAttentionBackward(const Stream& stream, const AttentionBackwardArgs& args,
                                const void* stats_HN, int64_t stride, int* taken) {
  const Backward queries = OfQueries(args, stats_HN, stride), keys = OfKeys(args, stats_HN, stride);
  const auto run = [&]<int kWidth>() {
    using Shape = PanelTile<kWidth, 64>;
    Run<Gradients<Stay::kQueries, Shape>>(stream, queries, args, taken);
    Run<Gradients<Stay::kKeys, Shape>>(stream, keys, args, taken + 1);
  };
  if (std::max(queries.a.size, queries.b.size) <= 64) return run.operator()<64>();
  run.operator()<128>();
}

}  // namespace lt2::cuda
