// The outputs of several narrow projections, up to 64 in all, as bfloat16 kernels see them: pieces
// of 8, each of one projection and perhaps not full. What a piece lacks counts as zero.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels/cuda/piece.cuh"

namespace lt2::cuda {

inline constexpr int kPiece = 8, kMostPieces = 8;

// Outputs [first, first + size) of a projection; y of them at (row, j) is y[row · stride + j].
struct NarrowPiece {
  const bf16* w = nullptr;  // [size, width]
  bf16* y = nullptr;        // or dy
  float* dw = nullptr;      // [size, width]
  int size = 0, stride = 0;
  bool wide = false;  // 8 outputs, and 16 aligned bytes of y a row
};
struct NarrowPieces {
  NarrowPiece of[kMostPieces];
  int count = 0;

  bool all_wide() const {
    return std::all_of(of, of + count, [](const NarrowPiece& piece) { return piece.wide; });
  }
};

// The four words of y's piece at a row, where it is not wide.
__device__ inline uint4 LoadOutputs(const NarrowPiece& piece, int64_t row) {
  const bf16* at = piece.y + row * piece.stride;
  const auto pair = [&](int j) {
    return Halves(j < piece.size ? Get(at, j) : 0, j + 1 < piece.size ? Get(at, j + 1) : 0);
  };
  return make_uint4(pair(0), pair(2), pair(4), pair(6));
}

inline bool Aligned(const Tensor& x) { return reinterpret_cast<uintptr_t>(x.raw()) % 16 == 0; }

// Nothing where the projections are too many or too odd for pieces. x or its gradient is
// [rows, width]; either of w and dw may be empty.
inline NarrowPieces PiecesOf(const Tensor& x, const std::vector<Tensor>& w,
                             const std::vector<Tensor>& y, const std::vector<Tensor>& dw = {}) {
  const int64_t width = x.shape().back();
  if (x.dtype() != DType::kBF16 || width % 8 != 0 || width > 1 << 20 || !Aligned(x)) return {};
  NarrowPieces pieces;
  for (size_t i = 0; i < y.size(); ++i) {
    const int64_t outputs = y[i].shape().back();
    if (!w.empty() && !Aligned(w[i])) return {};
    for (int64_t first = 0; first < outputs; first += kPiece) {
      if (pieces.count == kMostPieces) return {};
      pieces.of[pieces.count++] = {
          .w = w.empty() ? nullptr : Data<bf16>(w[i]) + first * width,
          .y = Data<bf16>(y[i]) + first,
          .dw = dw.empty() ? nullptr : Data<float>(dw[i]) + first * width,
          .size = static_cast<int>(std::min<int64_t>(kPiece, outputs - first)),
          .stride = static_cast<int>(outputs),
          .wide = outputs % kPiece == 0 && Aligned(y[i])};
    }
  }
  return pieces;
}

// Calls fn.operator()<kTiles>() with tiles of 16 outputs that hold the pieces.
template <class Fn>
void DispatchTiles(const NarrowPieces& pieces, const Fn& fn) {
  if (pieces.count <= 2) return fn.template operator()<1>();
  if (pieces.count <= 4) return fn.template operator()<2>();
  fn.template operator()<4>();
}

}  // namespace lt2::cuda
