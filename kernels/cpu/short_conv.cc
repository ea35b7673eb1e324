#include "kernels/short_conv.h"

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/short_conv_taps.h"
#include "kernels/cpu/simd.h"

namespace lt2::cpu {
namespace {

// One chunk of tokens of one document.
struct Piece {
  int64_t document, token, rows;
  int64_t position;       // of its first token in the document
  int64_t document_rows;  // tokens of the document

  Piece(const Documents& documents, int64_t chunk) {
    const int32_t* entry = documents.chunks().data<int32_t>() + 3 * chunk;
    const int32_t* cu = documents.cu_seqlens().data<int32_t>() + entry[0];
    document = entry[0], token = entry[1], rows = entry[2];
    position = token - cu[0], document_rows = cu[1] - cu[0];
  }
  int64_t begin() const { return token - position; }
};

template <class T>
void Activate(bool silu, int64_t channels, const T* __restrict u, T* __restrict y) {
  if (!silu) {
    std::copy(u, u + channels, y);
    return;
  }
#pragma omp simd
  for (int64_t c = 0; c < channels; ++c) y[c] = Silu(u[c]);
}

template <class T>
void ForwardPiece(const ShortConvForwardArgs& a, const Piece& piece) {
  Scratch& scratch = Scratch::Restart();
  const ConvTaps<T> taps(a.w_CW, a.bias_C, scratch);
  const ConvRows<T> in(a.x_NC, a.tail_DPC, piece.document, piece.begin(), taps.width - 1,
                       taps.zero);
  T* u = scratch.Take<T>(taps.channels);
  T* y = a.y_NC.data<T>() + piece.token * taps.channels;
  const T* rows[kMostTaps];
  for (int64_t r = 0; r < piece.rows; ++r, y += taps.channels) {
    in.Window(piece.position + r, rows);
    taps.Sum(taps.bias, rows, u);
    Activate(a.silu, taps.channels, u, y);
  }
}

// du of the row whose taps read `rows`.
template <class T>
void PreActivationGrad(const ShortConvBackwardArgs& a, const ConvTaps<T>& taps,
                       const T* const* rows, const T* __restrict dy, T* __restrict du) {
  if (!a.silu) {
    std::copy(dy, dy + taps.channels, du);
    return;
  }
  taps.Sum(taps.bias, rows, du);
#pragma omp simd
  for (int64_t c = 0; c < taps.channels; ++c) {
    const T u = du[c], s = Sigmoid(u);
    du[c] = dy[c] * s * (1 + u * (1 - s));
  }
}

// The rows after the piece that read it are computed here again, so that pieces are independent.
template <class T>
void BackwardPiece(const ShortConvBackwardArgs& a, const Piece& piece, T* sums) {
  Scratch& scratch = Scratch::Restart();
  const ConvTaps<T> taps(a.w_CW, a.bias_C, scratch);
  const int64_t before = taps.width - 1, channels = taps.channels;
  const ConvRows<T> in(a.x_NC, a.tail_DPC, piece.document, piece.begin(), before, taps.zero);
  const int64_t computed = std::min(piece.rows + before, piece.document_rows - piece.position);
  T* du = scratch.Take<T>((kChunk + kMostTaps) * channels);
  const T* dy = a.dy_NC.data<T>() + piece.token * channels;
  const T* rows[kMostTaps];
  for (int64_t r = 0; r < computed; ++r) {
    in.Window(piece.position + r, rows);
    PreActivationGrad(a, taps, rows, dy + r * channels, du + r * channels);
    if (r < piece.rows) taps.AddGradients(rows, du + r * channels, sums);
  }
  if (!a.dx_NC.defined()) return;
  T* dx = a.dx_NC.data<T>() + piece.token * channels;
  for (int64_t r = 0; r < piece.rows; ++r, dx += channels) {
    for (int64_t i = 0; i <= before; ++i) {  // tap i of the row that many later
      const int64_t later = r + before - i;
      rows[i] = later < computed ? du + later * channels : taps.zero;
    }
    taps.Sum(a.accumulate_dx ? dx : taps.zero, rows, dx);
  }
}

// dw [channels, width] and dbias += what the blocks summed by tap.
template <class T>
void AddParameterGrads(const ShortConvBackwardArgs& a, const RowSums<T>& sums) {
  const int64_t channels = a.w_CW.dim(0), width = a.w_CW.dim(1);
  T* total = Scratch::Restart().Take<T>(channels);
  for (int64_t i = 0; i < width && a.dw_CW.defined(); ++i) {
    std::fill(total, total + channels, T(0));
    sums.AddTo(total, i * channels, channels);
    for (int64_t c = 0; c < channels; ++c) a.dw_CW.data<T>()[c * width + i] += total[c];
  }
  if (a.dbias_C.defined()) sums.AddTo(a.dbias_C.data<T>(), width * channels, channels);
}

}  // namespace

void ShortConvForward(Stream&, const ShortConvForwardArgs& a) {
  CHECK_LE(a.w_CW.dim(1), kMostTaps);
  DispatchFloat(a.x_NC.dtype(), [&]<class T>() {
    ForEachBlock(a.documents.chunk_count(), 1, a.x_NC.size(), [&](int64_t chunk, int64_t, int64_t) {
      ForwardPiece<T>(a, Piece(a.documents, chunk));
    });
  });
}

void ShortConvBackward(Stream&, const ShortConvBackwardArgs& a) {
  CHECK_LE(a.w_CW.dim(1), kMostTaps);
  const int64_t chunks = a.documents.chunk_count();
  DispatchFloat(a.x_NC.dtype(), [&]<class T>() {
    const RowSums<T> sums(chunks, (a.w_CW.dim(1) + 1) * a.w_CW.dim(0));
    ForEachBlock(chunks, RowSums<T>::Block(chunks), a.x_NC.size(),
                 [&](int64_t block, int64_t begin, int64_t end) {
                   T* line = sums.Line(block);
                   for (int64_t chunk = begin; chunk < end; ++chunk) {
                     BackwardPiece<T>(a, Piece(a.documents, chunk), line);
                   }
                 });
    AddParameterGrads(a, sums);
  });
}

void ShortConvTail(Stream&, const ShortConvTailArgs& a) {
  const int64_t before = a.tail_out_DPC.dim(1), channels = a.x_NC.dim(1);
  const int32_t* cu = a.documents.cu_seqlens().data<int32_t>();
  DispatchFloat(a.x_NC.dtype(), [&]<class T>() {
    T* zero = Scratch::Restart().Take<T>(channels);
    std::fill(zero, zero + channels, T(0));
    T* to = a.tail_out_DPC.data<T>();
    for (int64_t d = 0; d < a.documents.count(); ++d) {
      const ConvRows<T> in(a.x_NC, a.tail_DPC, d, cu[d], before, zero);
      for (int64_t p = 0; p < before; ++p, to += channels) {
        const T* row = in.Row(cu[d + 1] - cu[d] - before + p);
        std::copy(row, row + channels, to);
      }
    }
    std::fill(to, a.tail_out_DPC.data<T>() + a.tail_out_DPC.size(), T(0));
  });
}

void ShortConvStep(Stream&, const ShortConvStepArgs& a) {
  const int64_t before = a.tail_BPC.dim(1), channels = a.x_BC.dim(1);
  CHECK_LE(before + 1, kMostTaps);
  DispatchFloat(a.x_BC.dtype(), [&]<class T>() {
    Scratch& scratch = Scratch::Restart();
    const ConvTaps<T> taps(a.w_CW, a.bias_C, scratch);
    T* u = scratch.Take<T>(channels);
    const T* rows[kMostTaps];
    for (int64_t b = 0; b < a.x_BC.dim(0); ++b) {
      const ConvRows<T> in(a.x_BC, a.tail_BPC, b, b, before, taps.zero);
      in.Window(0, rows);
      taps.Sum(taps.bias, rows, u);
      Activate(a.silu, channels, u, a.y_BC.data<T>() + b * channels);
      T* tail = a.tail_BPC.data<T>() + b * before * channels;
      if (before == 0) continue;
      std::copy(tail + channels, tail + before * channels, tail);
      std::copy(rows[before], rows[before] + channels, tail + (before - 1) * channels);
    }
  });
}

}  // namespace lt2::cpu
