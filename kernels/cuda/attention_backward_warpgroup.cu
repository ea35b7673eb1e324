// Gradients of attention (attention_gradients.cuh) with products of a warpgroup: sums of one
// streamed tile are still being added to when the scores of the next begin.
#include "kernels/cuda/attention_gradients.cuh"
#include "kernels/cuda/attention_panels.cuh"
#include "kernels/cuda/attention_tensor_core.h"

namespace lt2::cuda {
namespace {

template <Stay kStay, class Shape>
struct Gradients : Shape {
  static constexpr bool kQueries = kStay == Stay::kQueries, kWithDa = true, kWithDb = !kQueries;
  static constexpr int kStages = 3, kStageBytes = 2 * Shape::kStreamBytes;
  static constexpr int kStreamAt = 2 * Shape::kRowBytes;              // x, y of each stage
  static constexpr int kStatsAt = kStreamAt + kStages * kStageBytes;  // of streamed queries
  static constexpr int kStatsBytes = 8 * Shape::kStream;
  static constexpr int kSharedBytes = kStatsAt + kStages * kStatsBytes + kPanelAlignment;
};

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    AttentionWarpgroupBackward(const __grid_constant__ Backward args) {
  const AttentionProblem& problem = args.problem;
  // Those with the most to stream begin first: late queries, early keys.
  const int chunk = Tile::kQueries ? gridDim.y - 1 - blockIdx.y : blockIdx.y;
  const BlockRows rows = RowsOfBlock<Tile::kRows>(problem, chunk);
  if (!rows.any) return;
  const int head = blockIdx.x;
  const Streamed streamed = StreamedBy<Tile>(problem, rows);
  const uint32_t a = AlignedShared(), b = a + Tile::kRowBytes;
  const unsigned char* base = DynamicShared() + (a - SharedAddress(DynamicShared()));

  const auto copy_streamed = [&](int of_head, int from, int stage) {
    const uint32_t to = a + Tile::kStreamAt + stage * Tile::kStageBytes;
    CopyPanels<Tile, Tile::kStream>(to, args.x, of_head, from, streamed.end);
    CopyPanels<Tile, Tile::kStream>(to + Tile::kStreamBytes, args.y, of_head, from, streamed.end);
    if (!Tile::kQueries && threadIdx.x < Tile::kStream) {
      const int64_t i = from + threadIdx.x;
      CopyAsync8(a + Tile::kStatsAt + stage * Tile::kStatsBytes + 8 * threadIdx.x,
                 args.stats_HN + of_head * args.tokens + i, i < streamed.end);
    }
  };
  CopyPanels<Tile, Tile::kRows>(a, args.a, head, rows.first, rows.end);
  CopyPanels<Tile, Tile::kRows>(b, args.b, head, rows.first, rows.end);
  copy_streamed(streamed.head, streamed.begin, 0);

  const int warp = threadIdx.x / 32,
            row = rows.first + warp * Tile::kWarpRows + threadIdx.x % 32 / 4;
  const int in_block = WarpgroupIndex() * Tile::kGroupRows;
  const int first = rows.first + in_block, last = first + Tile::kGroupRows - 1;
  const uint32_t of_group = in_block * kPanelRowBytes;
  const RowStats<Tile> stats = StatsOfRows<Tile>(args, head, row, rows.end);
  RowSums<Tile> da, db;
  SetZero<Tile>(da);
  if constexpr (Tile::kWithDb) SetZero<Tile>(db);

  int at = streamed.begin, of_head = streamed.head;
  const int head_end = streamed.head + streamed.heads;
  for (int stage = 0, next = 1; of_head < head_end; stage = next, next = next == 2 ? 0 : next + 1) {
    WaitForCopies();
    PublishShared();
    __syncthreads();  // this tile is there, and nobody reads the last but one any more
    const int here = at, here_last = here + Tile::kStream - 1;
    at += Tile::kStream;
    if (at >= streamed.end) at = streamed.begin, ++of_head;
    if (of_head < head_end) copy_streamed(of_head, at, next);
    // The ages of keys when queries see them, over the group's rows and the tile: least and most.
    const int least = Tile::kQueries ? first - here_last : here - last;
    const int most = Tile::kQueries ? last - here : here_last - first;
    if (most < 0 || least >= problem.window) {
      WaitForProducts<0>();  // of the tile before: its place is written to after the next barrier
      continue;
    }
    const uint32_t x = a + Tile::kStreamAt + stage * Tile::kStageBytes, y = x + Tile::kStreamBytes;
    const float2* columns =
        reinterpret_cast<const float2*>(base + Tile::kStatsAt + stage * Tile::kStatsBytes);
    Scores<Tile> p, dp;
    BeginProducts();
    QueueScores<Tile>(p, a + of_group, x);
    CommitProducts();
    QueueScores<Tile>(dp, b + of_group, y);
    CommitProducts();
    WaitForProducts<1>();
    Settle(p);
    Probabilities<Tile>(p, problem.scale * kLog2E, stats, columns);
    if (least < 0 || most >= problem.window) Mask<Tile>(p, row - here, problem.window);
    if constexpr (Tile::kWithDb) {
      Packed<Tile> packed;
      Pack<Tile>(packed, p);
      BeginProducts();
      QueueRows<Tile>(db, packed, y);
      CommitProducts();
      WaitForProducts<1>();
    } else {
      WaitForProducts<0>();
    }
    Settle(dp);
    ScoreGradients<Tile>(p, dp, stats, columns);
    Packed<Tile> packed;
    Pack<Tile>(packed, p);
    BeginProducts();
    QueueRows<Tile>(da, packed, x);
    CommitProducts();
  }
  WaitForProducts<0>();
  Settle(da);
  if constexpr (Tile::kWithDb) Settle(db);
  StoreGradients<Tile>(args, head, row, rows.end, da, db);
}

template <class Tile>
void Run(const Stream& stream, const Backward& backward, int64_t chunks) {
  const AttentionProblem& problem = backward.problem;
  if (backward.da == nullptr && backward.db == nullptr) return;
  const dim3 grid(Tile::kQueries ? problem.heads : problem.groups, chunks);
  AllowShared(AttentionWarpgroupBackward<Tile>, Tile::kSharedBytes);
  AttentionWarpgroupBackward<Tile>
      <<<grid, Tile::kThreads, Tile::kSharedBytes, Handle(stream)>>>(backward);
  CheckLaunch("attention backward");
}

}  // namespace

void WarpgroupAttentionBackward(const Stream& stream, const AttentionBackwardArgs& args,
                                const void* stats_HN) {
  const Backward queries = OfQueries(args, stats_HN), keys = OfKeys(args, stats_HN);
  const int64_t chunks = args.documents.chunk_capacity();
  const auto run = [&]<int kWidth>() {
    using Shape = PanelTile<kWidth, 64>;
    Run<Gradients<Stay::kQueries, Shape>>(stream, queries, chunks);
    Run<Gradients<Stay::kKeys, Shape>>(stream, keys, chunks);
  };
  if (std::max(queries.a.size, queries.b.size) <= 64) return run.operator()<64>();
  run.operator()<128>();
}

}  // namespace lt2::cuda
