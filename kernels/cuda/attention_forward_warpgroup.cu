// Shah et al.: "FlashAttention-3" (2024), in small: the scores of the next keys are computed while
// this tile's values are summed, so that exponentials overlap with products.
#include "kernels/cuda/attention_panels.cuh"
#include "kernels/cuda/attention_softmax.cuh"
#include "kernels/cuda/attention_tensor_core.h"

namespace lt2::cuda {
namespace {

template <class Tile>
constexpr int kSharedBytes = Tile::kRowBytes + 4 * Tile::kStreamBytes + kPanelAlignment;

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    AttentionWarpgroupForward(const __grid_constant__ Forward args) {
  const AttentionProblem& problem = args.problem;
  // Late tiles see the most keys: they begin first.
  const auto rows = RowsOfBlock<Tile::kRows>(problem, gridDim.y - 1 - blockIdx.y);
  if (!rows.any) return;
  const int head = blockIdx.x, group = head / (problem.heads / problem.groups);
  const uint32_t q = AlignedShared(), k = q + Tile::kRowBytes, v = k + 2 * Tile::kStreamBytes;

  const int key_begin = max(rows.begin, rows.first - problem.window + 1);
  const int key_end = min(rows.first + Tile::kRows, rows.end);
  const int tiles = (key_end - key_begin + Tile::kStream - 1) / Tile::kStream;
  const auto copy = [&](uint32_t to, const HeadRows& from, int tile) {
    CopyPanels<Tile, Tile::kStream>(to + tile % 2 * Tile::kStreamBytes, from, group,
                                    key_begin + tile * Tile::kStream, key_end);
  };
  CopyPanels<Tile, Tile::kRows>(q, args.q, head, rows.first, rows.end);
  copy(k, args.k, 0);
  copy(v, args.v, 0);

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int first = rows.first + warp * Tile::kWarpRows, last = first + Tile::kWarpRows - 1;
  const int row = first + lane / 4;
  const uint32_t q_group = q + WarpgroupIndex() * Tile::kGroupRows * kPanelRowBytes;
  RowSums<Tile> o;
  SetZero<Tile>(o);
  OfRows<Tile> m = Everywhere<Tile>(kMasked), l = Everywhere<Tile>(0), shrink;
  Scores<Tile> s;
  Packed<Tile> p;
  const auto softmax = [&](int tile) {
    const int key = key_begin + tile * Tile::kStream, key_last = key + Tile::kStream - 1;
    if (key_last > first || key <= last - problem.window) Mask<Tile>(s, key, row, problem.window);
    return Softmax<Tile>(s, problem.scale * kLog2E, m, l, shrink);
  };

  WaitForCopies();
  PublishShared();
  __syncthreads();
  if (tiles > 1) copy(k, args.k, 1);
  BeginProducts();
  QueueScores<Tile>(s, q_group, k);
  CommitProducts();
  WaitForProducts<0>();
  Settle(s);
  softmax(0);
  Pack<Tile>(p, s);
  for (int tile = 1; tile < tiles; ++tile) {
    WaitForCopies();
    PublishShared();
    __syncthreads();  // these keys are there, and nobody reads those or the values before any more
    if (tile + 1 < tiles) copy(k, args.k, tile + 1);
    copy(v, args.v, tile);
    BeginProducts();
    QueueScores<Tile>(s, q_group, k + tile % 2 * Tile::kStreamBytes);
    CommitProducts();
    QueueRows<Tile>(o, p, v + (tile - 1) % 2 * Tile::kStreamBytes);
    CommitProducts();
    WaitForProducts<1>();
    Settle(s);
    const bool rescale = softmax(tile);
    WaitForProducts<0>();
    Settle(o);
    if (rescale) Rescale<Tile>(o, shrink);
    Pack<Tile>(p, s);
  }
  WaitForCopies();
  PublishShared();
  __syncthreads();
  BeginProducts();
  QueueRows<Tile>(o, p, v + (tiles - 1) % 2 * Tile::kStreamBytes);
  CommitProducts();
  WaitForProducts<0>();
  Settle(o);
  FinishRows<Tile>(args, head, row, rows.end, m, l, o);
}

}  // namespace

void WarpgroupAttentionForward(const Stream& stream, const AttentionForwardArgs& args) {
  const Forward forward = ForwardOf(args);
  const dim3 grid(forward.problem.heads, args.documents.chunk_capacity());
  const auto run = [&]<int kWidth>() {
    using Tile = PanelTile<kWidth, 128>;
    AllowShared(AttentionWarpgroupForward<Tile>, kSharedBytes<Tile>);
    AttentionWarpgroupForward<Tile>
        <<<grid, Tile::kThreads, kSharedBytes<Tile>, Handle(stream)>>>(forward);
    CheckLaunch("attention");
  };
  if (std::max(forward.q.size, forward.v.size) <= 64) return run.operator()<64>();
  run.operator()<128>();
}

}  // namespace lt2::cuda
