// What a persistent block of the delta rule's gradients works through, and how its operands reach
// shared memory: two stages of 64 value columns each, one ahead of the products. Whole chunks come
// by the copy engine, which one thread asks; others by everybody's copies.
#pragma once

#include "kernels/cuda/bulk_copy.cuh"
#include "kernels/cuda/scan_delta_gradients.cuh"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/warpgroup_rows.cuh"

namespace lt2::cuda {

// Three warpgroups: what each does is said with the kernel.
inline constexpr int kGradientThreads = 384;

// Boxes of 64 rows and columns, of the states of all rows of a chunk's head.
struct GradientMaps {
  CUtensorMap d_o, u, du, v, states, dstates, inverse, q, k;
  bool ready;  // or there are none
};
inline GradientMaps GradientMapsOf(const DeltaGradients<bf16>& data, int chunks) {
  const ScanShape& n = data.in.shape;
  GradientMaps maps{};
  maps.ready = data.do_NGV != nullptr && (n.k == 64 || n.k == 96 || n.k == 128);
  if (!maps.ready) return maps;
  const int64_t items = int64_t{chunks} * n.heads;
  const auto values = [&](const bf16* x) { return PanelMap(x, n.tokens, n.heads, n.v, kPanel); };
  const auto keys = [&](const bf16* x) { return PanelMap(x, n.tokens, n.key_heads, n.k, kPanel); };
  const auto states = [&](const bf16* x) {
    return MatrixMap(x, items * n.k, n.v, n.k, kPanelColumns);
  };
  maps.d_o = values(data.do_NGV), maps.u = values(data.u_NGV);
  maps.du = values(data.e_NGV), maps.v = values(data.in.v_NGV);
  maps.states = states(data.states_CGKV), maps.dstates = states(data.dstates_CGKV);
  maps.inverse = MatrixMap(data.inverse, items * kPanel, kPanel, kPanel, kPanelColumns);
  maps.q = keys(data.in.q_NHK), maps.k = keys(data.in.k_NHK);
  return maps;
}

// Where things lie in shared memory, in bytes; tiles are those of warpgroup.cuh. kWidth: of keys,
// 64, 96 or 128; what is beyond a key or a value is zero.
template <int kWidth>
struct GradientTiles {
  static constexpr int kPanels = (kWidth + kPanel - 1) / kPanel, kPieces = kWidth / 8;
  static constexpr int kPanelBytes = kPanel * kPanelRowBytes;
  // Of a stage: rows of dO, U, dU and V, of the states and their gradients, and with a unit's first
  // columns T, the log-decays of rows and beta.
  static constexpr int kDo = 0, kU = kPanelBytes, kDu = 2 * kPanelBytes, kV = 3 * kPanelBytes;
  static constexpr int kState = 4 * kPanelBytes, kDstate = kState + kWidth * kPanelRowBytes;
  static constexpr int kInverse = kDstate + kWidth * kPanelRowBytes;
  static constexpr int kDecays = kInverse + kPanelBytes, kBeta = kDecays + kPanel * 4;
  static constexpr int kStageBytes = kDecays + 1024;
  // Behind the stages.
  static constexpr int kQ = 2 * kStageBytes, kK = kQ + kPanels * kPanelBytes;
  static constexpr int kW = kK + kPanels * kPanelBytes, kB = kW + kPanelBytes;
  static constexpr int kX = kB + kPanelBytes;
  // Of the stages and of the keys, that they have come.
  static constexpr int kBarriers = kX + kPanels * kPanelBytes, kSmall = kBarriers + 64;
};

// A chunk's value head; the heads of a key head come one after the other, in one block.
struct GradientUnit {
  int chunk, key_head, head;  // chunk -1: there are no more units
};

template <int kWidth>
class GradientStream {
 public:
  using Tiles = GradientTiles<kWidth>;

  // items: chunks times key heads.
  __device__ GradientStream(const DeltaGradients<bf16>& data, const GradientMaps& maps, int items,
                            uint32_t shared)
      : data_(data), maps_(maps), n_(data.in.shape), items_(items), shared_(shared) {}

  // Before anything is fetched.
  __device__ void Begin() const {
    if (threadIdx.x == 0) {
      for (int i = 0; i < 3; ++i) InitBarrier(Barrier(i), 1);
      PublishBarriers();
    }
    __syncthreads();
  }
  // Whether the copy engine brings a unit's operands: WaitForStage and WaitForKeys wait for those
  // whose parity has not ended.
  __device__ bool ByEngine(const GradientUnit& unit) const { return ByEngine(Place(unit)); }
  __device__ void WaitForStage(int stage, uint32_t parity) const {
    WaitForPhase(Barrier(stage), parity);
  }
  __device__ void WaitForKeys(uint32_t parity) const { WaitForPhase(Barrier(2), parity); }

  __device__ GradientUnit First() const { return Existing(blockIdx.x); }
  __device__ GradientUnit After(GradientUnit unit) const {
    if (++unit.head < (unit.key_head + 1) * data_.group) return unit;
    return Existing(unit.chunk * n_.key_heads + unit.key_head + gridDim.x);
  }
  __device__ bool IsFirst(const GradientUnit& unit) const {
    return unit.head == unit.key_head * data_.group;
  }
  // Of arrays a chunk and head.
  __device__ int64_t ChunkHead(const GradientUnit& unit) const {
    return int64_t{unit.chunk} * n_.heads + unit.head;
  }
  // Read anew wherever it is needed: registers are scarce.
  __device__ ChunkPlace Place(const GradientUnit& unit) const {
    return PlaceOf(n_.chunks, unit.chunk);
  }
  // Of the chunk's first row, in arrays a token and head, or key head.
  __device__ int64_t Row(const GradientUnit& unit, const ChunkPlace& place) const {
    return int64_t{place.token} * n_.heads + unit.head;
  }
  __device__ int64_t KeyRow(const GradientUnit& unit, const ChunkPlace& place) const {
    return int64_t{place.token} * n_.key_heads + unit.key_head;
  }

  // Value columns [64 slice, 64 slice + 64) of a unit into a stage, without waiting.
  __device__ void FetchSlice(const GradientUnit& unit, int slice, int stage) const {
    constexpr int kStep = kGradientThreads / 8;
    const ChunkPlace place = Place(unit);
    const uint32_t to = shared_ + stage * Tiles::kStageBytes;
    if (slice == 0) FetchRows(unit, place, to);
    if (ByEngine(place)) {
      if (threadIdx.x == 0) CopySlice(unit, place, slice, to, Barrier(stage));
      return;
    }
    const uint32_t thread = Anew(threadIdx.x);
    const int piece = thread % 8, first = thread / 8;
    const int begin = slice * kPanel + piece * 8;
    const bool inside = begin < n_.v;
    const uint32_t at = to + PanelOffset(kPanel, first, piece);  // kStep is a multiple of 8
#pragma unroll
    for (int r = 0; r < kPanel; r += kStep) {
      if (first + r >= kPanel) break;
      const int64_t from = (Row(unit, place) + int64_t{first + r} * n_.heads) * n_.v + begin;
      const bool valid = inside && first + r < place.rows;
      const uint32_t row = at + r * kPanelRowBytes;
      CopyAsync16(row + Tiles::kDo, data_.do_NGV + from, valid && data_.do_NGV != nullptr);
      CopyAsync16(row + Tiles::kU, data_.u_NGV + from, valid);
      CopyAsync16(row + Tiles::kDu, data_.e_NGV + from, valid);
      CopyAsync16(row + Tiles::kV, data_.in.v_NGV + from, valid);
    }
#pragma unroll
    for (int r = 0; r < kWidth; r += kStep) {
      if (first + r >= kWidth) break;
      const int64_t from = (ChunkHead(unit) * n_.k + first + r) * n_.v + begin;
      const bool valid = inside && first + r < n_.k;
      const uint32_t row = at + r * kPanelRowBytes;
      CopyAsync16(row + Tiles::kState, data_.states_CGKV + from, valid);
      CopyAsync16(row + Tiles::kDstate, data_.dstates_CGKV + from, valid);
    }
    if (slice != 0) return;
    const bf16* inverse = data_.inverse + ChunkHead(unit) * kPanel * kPanel;
#pragma unroll
    for (int r = 0; r < kPanel; r += kStep) {
      if (first + r >= kPanel) break;
      CopyAsync16(at + r * kPanelRowBytes + Tiles::kInverse,
                  inverse + (first + r) * kPanel + piece * 8, true);
    }
  }

  // Its queries and keys, likewise.
  __device__ void FetchKeys(const GradientUnit& unit) const {
    constexpr int kStep = kGradientThreads / 8;
    const ChunkPlace place = Place(unit);
    if (ByEngine(place)) {
      if (threadIdx.x == 0) CopyKeys(unit, place);
      return;
    }
    const uint32_t thread = Anew(threadIdx.x);
    const int piece = thread % 8, first = thread / 8;
    const uint32_t at = shared_ + PanelOffset(kPanel, first, piece);
#pragma unroll
    for (int r = 0; r < kPanel; r += kStep) {
      if (first + r >= kPanel) break;
      const int64_t from =
          (KeyRow(unit, place) + int64_t{first + r} * n_.key_heads) * n_.k + piece * 8;
#pragma unroll
      for (int panel = 0; panel < Tiles::kPanels; ++panel) {
        const int column = panel * kPanel + piece * 8;
        if (column >= kWidth) break;
        const bool valid = first + r < place.rows && column < n_.k;
        const uint32_t to = at + r * kPanelRowBytes + panel * Tiles::kPanelBytes;
        CopyAsync16(to + Tiles::kQ, data_.in.q_NHK + from + panel * kPanel, valid);
        CopyAsync16(to + Tiles::kK, data_.in.k_NHK + from + panel * kPanel, valid);
      }
    }
  }

  // The log-decays of its key channels [64, kWidth], where the pairs' weights will be.
  __device__ void FetchDecays(const GradientUnit& unit) const {
    constexpr int kPieces = kWidth / 4;
    const ChunkPlace place = Place(unit);
    static_assert(kPanel * kWidth * 4 <= Tiles::kBarriers - Tiles::kW);
    for (uint32_t i = Anew(threadIdx.x); i < kPanel * kPieces; i += kGradientThreads) {
      const int r = i / kPieces, column = i % kPieces * 4;
      const int64_t from = (Row(unit, place) + int64_t{r} * n_.heads) * n_.k + column;
      CopyAsync16(shared_ + Tiles::kW + i * 16, data_.in.g_NGK + from,
                  r < place.rows && column < n_.k);
    }
  }

 private:
  // From chunk key_heads + key head on.
  __device__ GradientUnit Existing(int item) const {
    for (; item < items_; item += gridDim.x) {
      const int chunk = item / n_.key_heads, key_head = item % n_.key_heads;
      if (PlaceOf(n_.chunks, chunk).rows == 0) continue;
      return {chunk, key_head, key_head * data_.group};
    }
    return {-1};
  }

  __device__ uint32_t Barrier(int i) const {
    return shared_ + Tiles::kBarriers + i * kBarrierBytes;
  }
  __device__ bool ByEngine(const ChunkPlace& place) const {
    return maps_.ready && place.rows == kPanel;
  }

  // By one thread.
  __device__ void CopySlice(const GradientUnit& unit, const ChunkPlace& place, int slice,
                            uint32_t to, uint32_t barrier) const {
    constexpr int kBytes = 4 * Tiles::kPanelBytes + 2 * kWidth * kPanelRowBytes;
    const int begin = slice * kPanel, item = static_cast<int>(ChunkHead(unit));
    ArriveExpecting(barrier, kBytes + (slice == 0 ? Tiles::kPanelBytes : 0));
    const auto values = [&](int at, const CUtensorMap& map) {
      CopyBox(to + at, map, barrier, begin, unit.head, place.token);
    };
    if (slice == 0) CopyBox(to + Tiles::kInverse, maps_.inverse, barrier, 0, item * kPanel);
    values(Tiles::kDu, maps_.du);
    values(Tiles::kU, maps_.u);
    values(Tiles::kDo, maps_.d_o);
    CopyBox(to + Tiles::kState, maps_.states, barrier, begin, item * kWidth);
    CopyBox(to + Tiles::kDstate, maps_.dstates, barrier, begin, item * kWidth);
    values(Tiles::kV, maps_.v);
  }
  __device__ void CopyKeys(const GradientUnit& unit, const ChunkPlace& place) const {
    ArriveExpecting(Barrier(2), 2 * Tiles::kPanels * Tiles::kPanelBytes);
#pragma unroll
    for (int panel = 0; panel < Tiles::kPanels; ++panel) {
      const int column = panel * kPanel, at = panel * Tiles::kPanelBytes;
      CopyBox(shared_ + Tiles::kQ + at, maps_.q, Barrier(2), column, unit.key_head, place.token);
      CopyBox(shared_ + Tiles::kK + at, maps_.k, Barrier(2), column, unit.key_head, place.token);
    }
  }

  // Decays and beta.
  __device__ void FetchRows(const GradientUnit& unit, const ChunkPlace& place, uint32_t to) const {
    const uint32_t thread = Anew(threadIdx.x);
    if (thread >= 2 * kPanel) return;
    const int r = thread % kPanel;
    const float* from = thread < kPanel ? data_.in.g_NG : data_.in.beta_NG;
    const bool valid = r < place.rows && from != nullptr;
    CopyAsync4(to + Tiles::kDecays + thread * 4, from + Row(unit, place) + int64_t{r} * n_.heads,
               valid);
  }

  const DeltaGradients<bf16>& data_;
  const GradientMaps& maps_;
  const ScanShape& n_;
  const int items_;
  const uint32_t shared_;
};

}  // namespace lt2::cuda
