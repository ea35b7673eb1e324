// Gradients of attention (attention_gradients.cuh) with products of one warp.
#include "kernels/cuda/attention_gradients.cuh"
#include "kernels/cuda/attention_tensor_core.h"

namespace lt2::cuda {
namespace {

// da and db together need many registers: wide heads get theirs one after the other.
template <Stay kStay, bool kDa, bool kDb, class Shape>
struct Gradients : Shape {
  static constexpr bool kQueries = kStay == Stay::kQueries, kWithDa = kDa, kWithDb = kDb;
  // Of a streamed tile: x, y, and of queries (log2 e · lse, δ).
  static constexpr int kStageBytes = 2 * Shape::kStreamBytes + (kQueries ? 0 : 8 * Shape::kStream);
  static constexpr int kSharedBytes = (kDa ? 2 : 1) * Shape::kRowBytes + 2 * kStageBytes;
};
template <int kWidth>
struct QueryTile;
template <>
struct QueryTile<32> : AttentionTile<32, 2, 4, 64, 2> {};
template <>
struct QueryTile<64> : AttentionTile<64, 2, 4, 64, 2> {};
template <>
struct QueryTile<96> : AttentionTile<96, 2, 4, 32, 2> {};
template <>
struct QueryTile<128> : AttentionTile<128, 2, 4, 32, 2> {};
template <>
struct QueryTile<192> : AttentionTile<192, 1, 8, 64, 1> {};
template <>
struct QueryTile<256> : AttentionTile<256, 1, 8, 32, 1> {};
template <int kWidth>
struct KeyTile : QueryTile<kWidth> {};
template <>
struct KeyTile<64> : AttentionTile<64, 2, 4, 32, 2> {};
template <>
struct KeyTile<96> : AttentionTile<96, 1, 8, 64, 1> {};
template <>
struct KeyTile<128> : AttentionTile<128, 1, 8, 48, 1> {};

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    AttentionBackwardKernel(const __grid_constant__ Backward args) {
  static_assert(Tile::kRows == 128);
  const AttentionProblem& problem = args.problem;
  // Those with the most to stream begin first: late queries, early keys.
  const int chunk = Tile::kQueries ? gridDim.y - 1 - blockIdx.y : blockIdx.y;
  const BlockRows rows = Tile::kQueries ? QueriesOfBlock<Tile::kRows>(problem, chunk)
                                        : KeysOfBlock<Tile::kRows>(problem, chunk);
  if (!rows.any) return;
  const int head = blockIdx.x, row_end = rows.last + 1;
  const Streamed streamed = StreamedBy<Tile>(problem, rows);
  const uint32_t a = SharedAddress(DynamicShared());
  const uint32_t b = a + Tile::kRowBytes;  // without da there is none
  constexpr int kStages = (Tile::kWithDa ? 2 : 1) * Tile::kRowBytes;

  const auto copy_streamed = [&](int of_head, int from, int stage) {
    const uint32_t to = a + kStages + stage * Tile::kStageBytes;
    CopyRows<Tile, Tile::kStream>(to, args.x, of_head, from, streamed.end);
    CopyRows<Tile, Tile::kStream>(to + Tile::kStreamBytes, args.y, of_head, from, streamed.end);
    if (!Tile::kQueries && threadIdx.x < Tile::kStream) {
      const int64_t i = from - args.x.begin + threadIdx.x;
      CopyAsync8(to + 2 * Tile::kStreamBytes + 8 * threadIdx.x,
                 args.stats_HN + of_head * args.stats_stride + i, i < streamed.end - args.x.begin);
    }
  };
  CopyRows<Tile, Tile::kRows>(a, args.a, head, rows.first, row_end);
  if constexpr (Tile::kWithDa) {
    CopyRows<Tile, Tile::kRows>(b, args.b, head, rows.first, row_end);
  }
  copy_streamed(streamed.head, streamed.begin, 0);

  const int warp_offset = threadIdx.x / 32 * Tile::kWarpRows;
  const int first = rows.first + warp_offset, last = first + Tile::kWarpRows - 1;
  const int row = first + threadIdx.x % 32 / 4;
  const RowStats<Tile> stats = StatsOfRows<Tile>(args, head, row, row_end);
  const float scale = problem.scale * kLog2E;
  const uint32_t a_lane = LaneOfRows<Tile>(a) + BlockOffset<Tile>(warp_offset, 0);
  RowSums<Tile> da, db;
  if constexpr (Tile::kWithDa) SetZero<Tile>(da);
  if constexpr (Tile::kWithDb) SetZero<Tile>(db);

  int at = streamed.begin, of_head = streamed.head;
  const int head_end = streamed.head + streamed.heads;
  for (int stage = 0; of_head < head_end; stage ^= 1) {
    WaitForCopies();
    __syncthreads();  // this tile is there, and nobody reads the other one any more
    const int here = at, here_last = here + Tile::kStream - 1;
    at += Tile::kStream;
    if (at >= streamed.end) at = streamed.begin, ++of_head;
    if (of_head < head_end) copy_streamed(of_head, at, stage ^ 1);
    // The ages of keys when queries see them, over the warp's rows and the tile: least and most.
    const int least = Tile::kQueries ? first - here_last : here - last;
    const int most = Tile::kQueries ? last - here : here_last - first;
    if (most < 0 || least >= problem.window) continue;

    const uint32_t x = a + kStages + stage * Tile::kStageBytes, y = x + Tile::kStreamBytes;
    const float2* columns = reinterpret_cast<const float2*>(
        DynamicShared() + kStages + stage * Tile::kStageBytes + 2 * Tile::kStreamBytes);
    Scores<Tile> p;
    ProductOfRows<Tile>(p, a_lane, LaneOfColumns<Tile>(x));
    Probabilities<Tile>(p, scale, stats, columns);
    if (least < 0 || most >= problem.window) Mask<Tile>(p, row - here, problem.window);
    if constexpr (Tile::kWithDb) AddProduct<Tile>(db, p, LaneOfRows<Tile>(y));
    if constexpr (Tile::kWithDa) {
      Scores<Tile> dp;
      ProductOfRows<Tile>(dp, a_lane + Tile::kRowBytes, LaneOfColumns<Tile>(y));
      ScoreGradients<Tile>(p, dp, stats, columns);
      AddProduct<Tile>(da, p, LaneOfRows<Tile>(x));
    }
  }
  StoreGradients<Tile>(args, head, row, row_end, da, db);
}

template <class Tile>
void Run(const Stream& stream, const Backward& backward, const Documents& documents) {
  const AttentionProblem& problem = backward.problem;
  const dim3 grid = Tile::kQueries ? dim3(problem.heads, documents.query_chunk_capacity())
                                   : dim3(problem.groups, documents.chunk_capacity());
  AllowShared(AttentionBackwardKernel<Tile>, Tile::kSharedBytes);
  AttentionBackwardKernel<Tile>
      <<<grid, Tile::kThreads, Tile::kSharedBytes, Handle(stream)>>>(backward);
  CheckLaunch("attention backward");
}

}  // namespace

void TensorCoreAttentionBackward(const Stream& stream, const AttentionBackwardArgs& args,
                                 const void* stats_HN) {
  const int64_t stride = args.q_NHD.dim(0);
  const Backward queries = OfQueries(args, stats_HN, stride), keys = OfKeys(args, stats_HN, stride);
  const Documents& documents = args.documents;
  DispatchWidth(std::max(queries.a.size, queries.b.size), [&]<int kWidth>() {
    using Keys = KeyTile<kWidth>;
    if (queries.da != nullptr) {
      Run<Gradients<Stay::kQueries, true, false, QueryTile<kWidth>>>(stream, queries, documents);
    }
    if constexpr (kWidth <= 128) {
      if (keys.da == nullptr && keys.db == nullptr) return;
      Run<Gradients<Stay::kKeys, true, true, Keys>>(stream, keys, documents);
    } else {
      if (keys.da != nullptr) {
        Run<Gradients<Stay::kKeys, true, false, Keys>>(stream, keys, documents);
      }
      if (keys.db != nullptr) {
        Run<Gradients<Stay::kKeys, false, true, Keys>>(stream, keys, documents);
      }
    }
  });
}

}  // namespace lt2::cuda
