// A tile's columns are, forward, 64 of gate and the same 64 of up, so that a thread has both of an
// element; backward they are 128 of hidden. Values are rounded as they are stored before anything
// is made of them, so that hidden is the same whoever makes it.
#include "kernels/cuda/gate.cuh"
#include "kernels/cuda/product_tiles.cuh"
#include "kernels/cuda/swiglu_ffn_warpgroup.h"
#include "kernels/cuda/tensor_map.h"

namespace lt2::cuda {
namespace {

// A matrix [rows, columns] that is read or written once, in pieces of 8; columns is a multiple
// of 8.
struct Matrix {
  bf16* data;
  int rows, columns;

  __device__ bool Has(int row, int column) const { return row < rows && column < columns; }
  __device__ uint4* At(int row, int column) const {
    return reinterpret_cast<uint4*>(data + int64_t{row} * columns + column);
  }
  __device__ RoundedPiece Read(int row, int column) const {
    if (!Has(row, column)) return {};
    const uint4 four = __ldcs(At(row, column));
    return {four.x, four.y, four.z, four.w};
  }
  __device__ void Write(int row, int column, const RoundedPiece& piece) const {
    if (!Has(row, column)) return;
    __stcs(At(row, column), make_uint4(piece.word[0], piece.word[1], piece.word[2], piece.word[3]));
  }
  // On its way to the L2 cache: the row's 128 columns.
  __device__ void Prefetch(int row, int column) const {
#pragma unroll
    for (int i = 0; i < 128; i += 64) {
      if (Has(row, column + i)) PrefetchLine(At(row, column + i));
    }
  }
  static __device__ void PrefetchLine(const void* at) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(at)));
  }
};

// fn(m, half, chunk): each stands for rows and 32 columns, a piece of a thread.
template <int kChunks, class Fn>
__device__ inline void ForEachPiece(const Fn& fn) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) fn(i / 2, i % 2, chunk);
  }
}

struct Forward {
  static constexpr bool kTurned = false;
  static constexpr int kUnits = 64;

  CUtensorMap x;
  CUtensorMap w[kProductCluster];  // 64 rows of gate's and of up's
  Matrix gate, up, hidden;
  TileOrder order;
  int depth;

  __device__ int jobs() const { return order.count(); }
  __device__ int steps() const { return depth; }
  __device__ ProductJob JobAt(int index) const {
    const TileOrder::Place at = order.At(index);
    return {at.pair * kProductCluster * kTileRows, at.across * kUnits};
  }
  __device__ void Copy(const StepPlace& to, const ProductJob& job, int step) const {
    CopyBox(to.rows, x, to.full, step * kStepDepth, job.row);
    CopyBoxToAll(to.half, w[to.rank], to.full, step * kStepDepth, job.column, kAllRanks);
  }
  __device__ void Begin(const ProductJob&) const {}

  __device__ void Finish(const ProductJob& job, const ProductSums& sums) const {
    ForEachPiece<kUnits / 32>([&](int m, int half, int chunk) {
      const int row = job.row + RowOfPiece(m, half);
      const int column = job.column + chunk * 32 + threadIdx.x % 4 * 8;
      const RoundedPiece g = PieceOf(sums, m, half, chunk * 32);
      const RoundedPiece u = PieceOf(sums, m, half, chunk * 32 + kUnits);
      gate.Write(row, column, g);
      up.Write(row, column, u);
      if (hidden.data == nullptr) return;
      RoundedPiece h;
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        h.word[w] = Halves(LowerHalf(u.word[w]) * Swish<bf16>::Value(LowerHalf(g.word[w])),
                           UpperHalf(u.word[w]) * Swish<bf16>::Value(UpperHalf(g.word[w])));
      }
      hidden.Write(row, column, h);
    });
  }
};

struct Backward {
  static constexpr bool kTurned = true;
  static constexpr int kUnits = 128;

  CUtensorMap dy;
  CUtensorMap w;  // 64 rows
  Matrix gate, up, dgate, dup, hidden;
  TileOrder order;
  int depth;

  __device__ int jobs() const { return order.count(); }
  __device__ int steps() const { return depth; }
  __device__ ProductJob JobAt(int index) const {
    const TileOrder::Place at = order.At(index);
    return {at.pair * kProductCluster * kTileRows, at.across * kUnits};
  }
  __device__ void Copy(const StepPlace& to, const ProductJob& job, int step) const {
    CopyBox(to.rows, dy, to.full, step * kStepDepth, job.row);
    CopyBoxToAll(to.half, w, to.full, job.column + to.rank * 64, step * kStepDepth, kAllRanks);
  }
  __device__ void Begin(const ProductJob& job) const {
    const int row = job.row + threadIdx.x % 128;
    gate.Prefetch(row, job.column);
    up.Prefetch(row, job.column);
  }

  // Of rows (m, half) everything is on its way before anything is used.
  __device__ void Finish(const ProductJob& job, const ProductSums& sums) const {
    constexpr int kChunks = kUnits / 32;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = job.row + RowOfPiece(i / 2, i % 2);
      const int first = job.column + threadIdx.x % 4 * 8;
      RoundedPiece g[kChunks], u[kChunks];
#pragma unroll
      for (int chunk = 0; chunk < kChunks; ++chunk) {
        g[chunk] = gate.Read(row, first + chunk * 32);
        u[chunk] = up.Read(row, first + chunk * 32);
      }
#pragma unroll
      for (int chunk = 0; chunk < kChunks; ++chunk) {
        const RoundedPiece d = PieceOf(sums, i / 2, i % 2, chunk * 32);
        FinishPiece(row, first + chunk * 32, g[chunk], u[chunk], d);
      }
    }
  }

  __device__ void FinishPiece(int row, int column, const RoundedPiece& g, const RoundedPiece& u,
                              const RoundedPiece& d) const {
    RoundedPiece of_gate, of_up, again;
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const uint32_t gs = g.word[w], us = u.word[w], ds = d.word[w];
      float value[2], slope[2];
      Swish<bf16>::ValueAndSlope(LowerHalf(gs), value[0], slope[0]);
      Swish<bf16>::ValueAndSlope(UpperHalf(gs), value[1], slope[1]);
      of_gate.word[w] = Halves(LowerHalf(ds) * LowerHalf(us) * slope[0],
                               UpperHalf(ds) * UpperHalf(us) * slope[1]);
      of_up.word[w] = Halves(LowerHalf(ds) * value[0], UpperHalf(ds) * value[1]);
      again.word[w] = Halves(LowerHalf(us) * value[0], UpperHalf(us) * value[1]);
    }
    dgate.Write(row, column, of_gate);
    dup.Write(row, column, of_up);
    if (hidden.data != nullptr) hidden.Write(row, column, again);
  }
};

template <class Problem>
__global__ void __launch_bounds__(kProductThreads, 1)
    SwiGluWarpgroupKernel(const __grid_constant__ Problem problem) {
  RunProducts(problem);
}

template <class Problem>
void Run(const Stream& stream, const Problem& problem) {
  LaunchProducts("swiglu_ffn", Handle(stream), SwiGluWarpgroupKernel<Problem>, problem,
                 problem.order.count());
}

CUtensorMap MapOf(const Tensor& x, int rows) {
  return MatrixMap(Data<bf16>(x), x.shape().rows(), x.shape().back(), rows, 64);
}

Matrix MatrixOf(const Tensor& x) {
  if (!x.defined()) return {};
  return {Data<bf16>(x), static_cast<int>(x.shape().rows()), static_cast<int>(x.shape().back())};
}

TileOrder OrderOf(const Tensor& x, int units_of_tile) {
  return {.pairs = TilesOver(x.shape().rows(), kProductCluster * kTileRows),
          .across = TilesOver(x.shape().back(), units_of_tile)};
}

bool Suit(std::initializer_list<Tensor> tensors) {
  if (!HasHopper()) return false;
  for (const Tensor& x : tensors) {
    if (!x.defined()) continue;
    const Shape& shape = x.shape();
    if (x.dtype() != DType::kBF16 || shape.rows() == 0 || shape.back() == 0 ||
        shape.back() % 8 != 0 || reinterpret_cast<uintptr_t>(x.raw()) % 16 != 0) {
      return false;
    }
  }
  return true;
}

}  // namespace

bool WarpgroupsTake(const SwiGluFfnForwardArgs& args) {
  return Suit({args.x, args.w_gate, args.w_up, args.gate, args.up, args.hidden});
}
bool WarpgroupsTake(const SwiGluFfnBackwardArgs& args) {
  return Suit({args.dy, args.w_down, args.gate, args.up, args.dgate, args.dup, args.hidden});
}

void WarpgroupSwiGluFfn(const Stream& stream, const SwiGluFfnForwardArgs& args) {
  Run(stream, Forward{.x = MapOf(args.x, kTileRows),
                      .w = {MapOf(args.w_gate, 64), MapOf(args.w_up, 64)},
                      .gate = MatrixOf(args.gate),
                      .up = MatrixOf(args.up),
                      .hidden = MatrixOf(args.hidden),
                      .order = OrderOf(args.gate, Forward::kUnits),
                      .depth = TilesOver(args.x.shape().back(), kStepDepth)});
}

void WarpgroupSwiGluFfn(const Stream& stream, const SwiGluFfnBackwardArgs& args) {
  Run(stream, Backward{.dy = MapOf(args.dy, kTileRows),
                       .w = MapOf(args.w_down, 64),
                       .gate = MatrixOf(args.gate),
                       .up = MatrixOf(args.up),
                       .dgate = MatrixOf(args.dgate),
                       .dup = MatrixOf(args.dup),
                       .hidden = MatrixOf(args.hidden),
                       .order = OrderOf(args.gate, Backward::kUnits),
                       .depth = TilesOver(args.dy.shape().back(), kStepDepth)});
}

}  // namespace lt2::cuda
