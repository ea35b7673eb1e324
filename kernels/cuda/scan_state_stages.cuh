// What runs beside the warpgroup of scan_states_warpgroup.cu: a thread that copies the chunks'
// operands to shared memory, as far ahead as it allows, and warps that store what the pass leaves
// there.
#pragma once

#include "kernels/cuda/bulk_copy.cuh"
#include "kernels/cuda/scan_operands.cuh"
#include "kernels/cuda/warpgroup.cuh"

namespace lt2::cuda {

inline constexpr int kPassThreads = 256;  // the state's, one that copies, three warps that store
inline constexpr int kStateWarps = 4, kCopyWarp = 4, kFirstStoreWarp = 5, kStoreWarps = 3;
inline constexpr int kValueTileBytes = kPanel * kPanelRowBytes, kPassAlignment = 1024;
inline constexpr int kMostShared = 227 * 1024;

struct StatePass {
  CUtensorMap first, last, extra;  // boxes of 64 rows and a panel's columns
  CUtensorMap values, y;           // of 64 tokens' slices of one head
  ScanShape shape;
  const float* decay;
  StatesOf from, to;  // none: zero, not wanted
  bool accumulate;
  bf16 *states_CGKV, *u_NGV;  // the states may be null
};

// A place in shared memory that the state's warps fill and the storing ones empty, once a chunk.
struct HandOver {
  static constexpr int kBytes = 2 * kBarrierBytes;
  uint32_t barriers;

  __device__ void Init() const {
    InitBarrier(barriers, kStateWarps);
    InitBarrier(barriers + kBarrierBytes, kStoreWarps);
  }
  // For the i-th time.
  __device__ void WaitEmpty(int i) const { WaitForPhase(barriers + kBarrierBytes, i % 2 ^ 1); }
  __device__ void WaitFull(int i) const { WaitForPhase(barriers, i % 2); }
  __device__ void Filled() const { ArriveOfWarp(barriers); }
  __device__ void Emptied() const { ArriveOfWarp(barriers + kBarrierBytes); }

 private:
  __device__ static void ArriveOfWarp(uint32_t barrier) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) Arrive(barrier);
  }
};

template <int width, bool delta, bool reverse>
struct PassShape {
  static constexpr int kWidth = width, kSteps = kWidth / 16;
  static constexpr bool kDelta = delta, kReverse = reverse, kExtra = delta && reverse;
  // A product is as wide as a part of the state; operands lie in panels of these columns.
  static constexpr int kParts = kWidth > 128 ? 2 : 1, kPartWidth = kWidth / kParts;
  static constexpr int kColumns = kPartWidth % 64 == 0 ? 64 : 32;
  static constexpr int kPanelBytes = kPanel * kColumns * 2;

  static constexpr int kOperands = 1 + kDelta + kExtra, kOperandBytes = kPanel * kWidth * 2;
  static constexpr int kStageBytes = kOperands * kOperandBytes + (1 + kExtra) * kValueTileBytes;
  static constexpr int kStateBytes = kWidth * kPanelRowBytes;
  static constexpr int kFixedBytes = kPassAlignment + kStateBytes + kDelta * kValueTileBytes + 128;
  static constexpr int kStages =
      std::min(4, (kMostShared - kFixedBytes) / (kStageBytes + kWidth * 4));
  static_assert(kStages >= 2);

  // In shared memory, from its first aligned byte on.
  static constexpr int kStateAt = kStages * kStageBytes, kUAt = kStateAt + kStateBytes;
  static constexpr int kDecayAt = kUAt + kDelta * kValueTileBytes;
  static constexpr int kBarriersAt = kDecayAt + kStages * kWidth * 4;
  static constexpr int kHandOversAt = kBarriersAt + Ring<kStages>::kBytes;
  static constexpr int kSharedBytes = kPassAlignment + kHandOversAt + 2 * HandOver::kBytes;
  static_assert(kSharedBytes <= kMostShared);
};

template <class P>
struct PassMemory {
  uint32_t base;
  const unsigned char* memory;  // the same, to read

  __device__ PassMemory() {
    const uint32_t start = SharedAddress(DynamicShared());
    base = (start + kPassAlignment - 1) / kPassAlignment * kPassAlignment;
    memory = DynamicShared() + (base - start);
  }
  __device__ uint32_t Operand(int stage, int i) const {
    return base + stage * P::kStageBytes + i * P::kOperandBytes;
  }
  __device__ uint32_t Last(int stage) const { return Operand(stage, 0); }
  __device__ uint32_t First(int stage) const { return Operand(stage, 1); }
  __device__ uint32_t Extra(int stage) const { return Operand(stage, 2); }
  __device__ uint32_t Values(int stage) const { return Operand(stage, P::kOperands); }
  __device__ uint32_t Y(int stage) const { return Values(stage) + kValueTileBytes; }
  __device__ int DecayAt(int stage) const { return P::kDecayAt + stage * P::kWidth * 4; }
  __device__ Ring<P::kStages> Stages() const { return {base + P::kBarriersAt}; }
  __device__ HandOver OfState() const { return {base + P::kHandOversAt}; }
  __device__ HandOver OfU() const { return {base + P::kHandOversAt + HandOver::kBytes}; }

  __device__ void Begin(int padded) const {
    if (threadIdx.x == 0) {
      Stages().Init(kStateWarps);
      OfState().Init();
      OfU().Init();
      PublishBarriers();
    }
    // No copy writes the decays of channels that are not there.
    for (int i = threadIdx.x; i < P::kStages * P::kWidth; i += kPassThreads) {
      float* decay = reinterpret_cast<float*>(const_cast<unsigned char*>(memory) + P::kDecayAt);
      if (i % P::kWidth >= padded) decay[i] = 0;
    }
    __syncthreads();
  }
};

// The chunks of a document in the order of the pass.
template <class P>
struct PassOrder {
  ChunksOf chunks;
  int head, heads;

  __device__ int count() const { return chunks.end - chunks.first; }
  __device__ int Chunk(int i) const { return P::kReverse ? chunks.end - 1 - i : chunks.first + i; }
  __device__ int64_t Item(int i) const { return int64_t{Chunk(i)} * heads + head; }
  __device__ ChunkPlace Place(int i) const { return chunks.Place(Chunk(i)); }
};

// By one thread.
template <class P>
__device__ void CopyChunks(const StatePass& pass, const PassMemory<P>& shared,
                           const PassOrder<P>& order, int begin) {
  const int padded = PaddedWidth(pass.shape.k);
  Ring<P::kStages> ring = shared.Stages();
  for (int i = 0; i < order.count(); ++i, ring.Next()) {
    const int64_t item = order.Item(i);
    const int row = static_cast<int>(item * kPanel), token = order.Place(i).token;
    const int stage = ring.place;
    const uint32_t full = ring.Full(stage);
    ring.WaitEmpty();
    ring.Expect(P::kStageBytes + padded * 4);
    const auto copy = [&](uint32_t to, const CUtensorMap& map) {
#pragma unroll
      for (int c = 0; c < P::kWidth; c += P::kColumns) {
        CopyBox(to + c / P::kColumns * P::kPanelBytes, map, full, c, row);
      }
    };
    if constexpr (P::kDelta) copy(shared.First(stage), pass.first);
    CopyBox(shared.Values(stage), pass.values, full, begin, order.head, token);
    CopyBytes(shared.base + shared.DecayAt(stage), pass.decay + item * padded, full, padded * 4);
    if constexpr (P::kExtra) {
      copy(shared.Extra(stage), pass.extra);
      CopyBox(shared.Y(stage), pass.y, full, begin, order.head, token);
    }
    copy(shared.Last(stage), pass.last);
  }
}

// By the store warps: rows of a slice from a tile of kMostRows. Several pieces are read before any
// is written.
template <int kMostRows>
__device__ inline void StoreRows(const unsigned char* tile, bf16* to, int64_t stride, int rows,
                                 int columns) {
  constexpr int kPieces = 8, kStep = 32 * kStoreWarps / kPieces, kAtOnce = 4;
  const int t = threadIdx.x - 32 * kFirstStoreWarp, piece = t % kPieces;
  if (8 * piece >= columns) return;
  to += 8 * piece;
#pragma unroll
  for (int begin = 0; begin < kMostRows; begin += kAtOnce * kStep) {
    uint4 pieces[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int r = begin + i * kStep + t / kPieces;
      if (r >= kMostRows) continue;
      pieces[i] = *reinterpret_cast<const uint4*>(tile + PanelOffset(kMostRows, r, piece));
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int r = begin + i * kStep + t / kPieces;
      if (r < rows) *reinterpret_cast<uint4*>(to + r * stride) = pieces[i];
    }
  }
}
template <class P>
__device__ void StoreChunks(const StatePass& pass, const PassMemory<P>& shared,
                            const PassOrder<P>& order, int begin) {
  const ScanShape& n = pass.shape;
  const int columns = n.v - begin;
  for (int i = 0; i < order.count(); ++i) {
    if (pass.states_CGKV != nullptr) {
      shared.OfState().WaitFull(i);
      StoreRows<P::kWidth>(shared.memory + P::kStateAt,
                           pass.states_CGKV + order.Item(i) * n.k * n.v + begin, n.v, n.k, columns);
      shared.OfState().Emptied();
    }
    if constexpr (P::kDelta) {
      const ChunkPlace place = order.Place(i);
      shared.OfU().WaitFull(i);
      StoreRows<kPanel>(shared.memory + P::kUAt,
                        pass.u_NGV + (int64_t{place.token} * n.heads + order.head) * n.v + begin,
                        int64_t{n.heads} * n.v, place.rows, columns);
      shared.OfU().Emptied();
    }
  }
}

}  // namespace lt2::cuda
