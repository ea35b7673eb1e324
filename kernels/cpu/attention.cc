#include "kernels/attention.h"

#include <cmath>

#include "kernels/cpu/attention_tile.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/simd.h"

namespace lt2::cpu {
namespace {

// Online softmax of one query tile: running maximum m and sum l per lane, oT [E, lanes].
template <class T>
struct TileState {
  T m[kQueryTile], l[kQueryTile], correction[kQueryTile];
  T* s;   // [kKeyTile, kQueryTile]
  T* oT;  // [E, kQueryTile]
};

// Turns scores into unnormalised probabilities and rescales what was summed before.
template <class T>
void SoftmaxBlock(const KeyBlock& block, int64_t E, TileState<T>& state) {
  const int64_t first = block.first_lane, lanes = block.lanes();
  T *m = state.m + first, *l = state.l + first, *correction = state.correction + first;
  T* s = state.s + first;
  T largest[kQueryTile], sum[kQueryTile];
  std::copy(m, m + lanes, largest);
  for (int64_t n = 0; n < block.keys; ++n) {
#pragma omp simd
    for (int64_t i = 0; i < lanes; ++i) {
      const T s_ni = s[n * kQueryTile + i];
      largest[i] = s_ni > largest[i] ? s_ni : largest[i];
    }
  }
  bool changed = false;
#pragma omp simd reduction(| : changed)
  for (int64_t i = 0; i < lanes; ++i) changed |= largest[i] != m[i];
#pragma omp simd
  for (int64_t i = 0; i < lanes; ++i) {
    correction[i] = Exp(m[i] - largest[i]);
    m[i] = largest[i];
    sum[i] = 0;
  }
  for (int64_t n = 0; n < block.keys; ++n) {
#pragma omp simd
    for (int64_t i = 0; i < lanes; ++i) {
      const T p = Exp(s[n * kQueryTile + i] - m[i]);
      s[n * kQueryTile + i] = p;
      sum[i] += p;
    }
  }
#pragma omp simd
  for (int64_t i = 0; i < lanes; ++i) l[i] = l[i] * correction[i] + sum[i];
  if (!changed) return;
  for (int64_t e = 0; e < E; ++e) {
#pragma omp simd
    for (int64_t i = 0; i < lanes; ++i) state.oT[e * kQueryTile + first + i] *= correction[i];
  }
}

template <class T>
void ForwardTile(const AttentionForwardArgs& args, int64_t begin, int64_t query, int64_t queries,
                 int64_t h) {
  const int64_t H = args.q_NHD.dim(1), D = args.q_NHD.dim(2);
  const int64_t row = query - args.documents.query_begin();
  const int64_t G = args.k_NGD.dim(1), E = args.v_NGE.dim(2), g = h / (H / G);
  Scratch& scratch = Scratch::Restart();
  T* qT = scratch.Take<T>(D * kQueryTile);  // scale · q
  TileState<T> state;
  state.oT = scratch.Take<T>(E * kQueryTile);
  state.s = scratch.Take<T>(kKeyTile * kQueryTile);
  std::fill(state.m, state.m + kQueryTile, T(kMasked));
  std::fill(state.l, state.l + kQueryTile, T(0));
  std::fill(state.oT, state.oT + E * kQueryTile, T(0));
  PackLanes(args.q_NHD.data<T>() + (row * H + h) * D, H * D, queries, D, T(args.options.scale), qT);
  ForEachKeyBlock<T>(begin, query, queries, args.options.window, [&](const KeyBlock& block) {
    T* s = state.s + block.first_lane;
    MicroGemm<false>(MicroGemmArgs<T>{.rows = block.keys,
                                      .lanes = block.lanes(),
                                      .inner = D,
                                      .a = args.k_NGD.data<T>() + (block.key * G + g) * D,
                                      .a_row = G * D,
                                      .a_inner = 1,
                                      .b = qT + block.first_lane,
                                      .ldb = kQueryTile,
                                      .c = s,
                                      .ldc = kQueryTile});
    if (block.masked) MaskBlock(block, query, args.options.window, T(kMasked), state.s);
    SoftmaxBlock(block, E, state);
    MicroGemm<true>(MicroGemmArgs<T>{.rows = E,
                                     .lanes = block.lanes(),
                                     .inner = block.keys,
                                     .a = args.v_NGE.data<T>() + (block.key * G + g) * E,
                                     .a_row = 1,
                                     .a_inner = G * E,
                                     .b = s,
                                     .ldb = kQueryTile,
                                     .c = state.oT + block.first_lane,
                                     .ldc = kQueryTile});
  });
  for (int64_t i = 0; i < queries; ++i) {
    T* o_ih = args.o_NHE.data<T>() + ((row + i) * H + h) * E;
    const T inverse = T(1) / state.l[i];
    for (int64_t e = 0; e < E; ++e) o_ih[e] = state.oT[e * kQueryTile + i] * inverse;
    args.lse_NH.data<T>()[(row + i) * H + h] = state.m[i] + std::log(state.l[i]);
  }
}

// The scratch of one query tile's backward.
template <class T>
struct BackwardScratch {
  T *qT, *doT, *dqT;  // [D or E, lanes]
  T *q, *dout;        // [kQueryTile, D or E padded]
  T *p, *ds;          // [kKeyTile, lanes]
  T lse[kQueryTile], delta[kQueryTile];
};

template <class T>
BackwardScratch<T> TakeBackwardScratch(int64_t D, int64_t E) {
  Scratch& memory = Scratch::Restart();
  BackwardScratch<T> scratch;
  scratch.qT = memory.Take<T>(D * kQueryTile);
  scratch.doT = memory.Take<T>(E * kQueryTile);
  scratch.dqT = memory.Take<T>(D * kQueryTile);
  scratch.q = memory.Take<T>(PadToLanes<T>(D) * kQueryTile);
  scratch.dout = memory.Take<T>(PadToLanes<T>(E) * kQueryTile);
  scratch.p = memory.Take<T>(kKeyTile * kQueryTile);
  scratch.ds = memory.Take<T>(kKeyTile * kQueryTile);
  return scratch;
}

// p = exp(s - lse) and ds = p (dp - delta), elementwise; s and dp are overwritten.
template <class T>
void SoftmaxBackwardBlock(const KeyBlock& block, int64_t query, int64_t window,
                          BackwardScratch<T>& scratch) {
  for (int64_t n = 0; n < block.keys; ++n) {
    T* p = scratch.p + n * kQueryTile;
#pragma omp simd
    for (int64_t i = block.first_lane; i < block.end_lane; ++i) p[i] = Exp(p[i] - scratch.lse[i]);
  }
  if (block.masked) MaskBlock(block, query, window, T(0), scratch.p);
  for (int64_t n = 0; n < block.keys; ++n) {
    const T* p = scratch.p + n * kQueryTile;
    T* ds = scratch.ds + n * kQueryTile;
#pragma omp simd
    for (int64_t i = block.first_lane; i < block.end_lane; ++i) {
      ds[i] = p[i] * (ds[i] - scratch.delta[i]);
    }
  }
}

template <class T>
void BackwardTile(const AttentionBackwardArgs& args, int64_t begin, int64_t query, int64_t queries,
                  int64_t h) {
  const int64_t H = args.q_NHD.dim(1), D = args.q_NHD.dim(2);
  const int64_t G = args.k_NGD.dim(1), E = args.v_NGE.dim(2), g = h / (H / G);
  const int64_t row = query - args.documents.query_begin();
  const T scale = static_cast<T>(args.options.scale);
  BackwardScratch<T> scratch = TakeBackwardScratch<T>(D, E);
  const T* q = args.q_NHD.data<T>() + (row * H + h) * D;
  const T* dout = args.do_NHE.data<T>() + (row * H + h) * E;
  PackLanes(q, H * D, queries, D, scale, scratch.qT);
  PackLanes(dout, H * E, queries, E, T(1), scratch.doT);
  PackRows(q, H * D, queries, D, scale, scratch.q);
  PackRows(dout, H * E, queries, E, T(1), scratch.dout);
  std::fill(scratch.dqT, scratch.dqT + D * kQueryTile, T(0));
  std::fill(scratch.lse, scratch.lse + kQueryTile, T(0));
  std::fill(scratch.delta, scratch.delta + kQueryTile, T(0));
  for (int64_t i = 0; i < queries; ++i) {
    const T* o_ih = args.o_NHE.data<T>() + ((row + i) * H + h) * E;
    T delta = 0;
#pragma omp simd reduction(+ : delta)
    for (int64_t e = 0; e < E; ++e) delta += o_ih[e] * dout[i * H * E + e];
    scratch.delta[i] = delta;
    scratch.lse[i] = args.lse_NH.data<T>()[(row + i) * H + h];
  }
  ForEachKeyBlock<T>(begin, query, queries, args.options.window, [&](const KeyBlock& block) {
    const int64_t lane = block.first_lane, key = block.key * G + g;
    const T* k = args.k_NGD.data<T>() + key * D;
    const T* v = args.v_NGE.data<T>() + key * E;
    MicroGemm<false>(MicroGemmArgs<T>{block.keys, block.lanes(), D, k, G * D, 1, scratch.qT + lane,
                                      kQueryTile, scratch.p + lane, kQueryTile});
    MicroGemm<false>(MicroGemmArgs<T>{block.keys, block.lanes(), E, v, G * E, 1, scratch.doT + lane,
                                      kQueryTile, scratch.ds + lane, kQueryTile});
    SoftmaxBackwardBlock(block, query, args.options.window, scratch);
    if (args.dv_NGE.defined()) {
      const int64_t width = PadToLanes<T>(E);
      MicroGemm<true>(MicroGemmArgs<T>{block.keys, E, block.lanes(), scratch.p + lane, kQueryTile,
                                       1, scratch.dout + lane * width, width,
                                       args.dv_NGE.data<T>() + key * E, G * E});
    }
    if (args.dk_NGD.defined()) {
      const int64_t width = PadToLanes<T>(D);
      MicroGemm<true>(MicroGemmArgs<T>{block.keys, D, block.lanes(), scratch.ds + lane, kQueryTile,
                                       1, scratch.q + lane * width, width,
                                       args.dk_NGD.data<T>() + key * D, G * D});
    }
    if (args.dq_NHD.defined()) {
      MicroGemm<true>(MicroGemmArgs<T>{D, block.lanes(), block.keys, k, 1, G * D, scratch.ds + lane,
                                       kQueryTile, scratch.dqT + lane, kQueryTile});
    }
  });
  if (!args.dq_NHD.defined()) return;
  T* dq = args.dq_NHD.data<T>() + (row * H + h) * D;
  for (int64_t i = 0; i < queries; ++i) {
    for (int64_t d = 0; d < D; ++d) {
      const T value = scale * scratch.dqT[d * kQueryTile + i];
      dq[i * H * D + d] = args.accumulate_dq ? dq[i * H * D + d] + value : value;
    }
  }
}

// One key/value head of one document: the only writer of its rows of dk and dv.
template <class T>
void BackwardHead(const AttentionBackwardArgs& args, int64_t begin, int64_t end, int64_t g) {
  const int64_t H = args.q_NHD.dim(1), G = args.k_NGD.dim(1);
  const auto start = [&](const Tensor& gradient, bool accumulate) {
    if (!gradient.defined() || accumulate) return;
    const int64_t width = gradient.dim(2);
    for (int64_t j = begin; j < end; ++j) {
      T* row = gradient.data<T>() + (j * G + g) * width;
      std::fill(row, row + width, T(0));
    }
  };
  start(args.dk_NGD, args.accumulate_dk);
  start(args.dv_NGE, args.accumulate_dv);
  const int64_t query_end = std::min(end, args.documents.query_end());
  for (int64_t h = g * (H / G); h < (g + 1) * (H / G); ++h) {
    for (int64_t tile = begin; tile < query_end; tile += kQueryTile) {
      const int64_t query = std::max(tile, args.documents.query_begin());
      const int64_t tile_end = std::min(tile + kQueryTile, query_end);
      if (query < tile_end) BackwardTile<T>(args, begin, query, tile_end - query, h);
    }
  }
}

}  // namespace

void AttentionForward(Stream&, const AttentionForwardArgs& args) {
  const int64_t H = args.q_NHD.dim(1), tiles = args.documents.query_chunk_count();
  const int32_t* cu_seqlens = args.documents.cu_seqlens().data<int32_t>();
  const int32_t* chunks = args.documents.query_chunks().data<int32_t>();
  DispatchFloat(args.q_NHD.dtype(), [&]<class T>() {
#pragma omp parallel for collapse(2) schedule(dynamic)
    for (int64_t tile = tiles - 1; tile >= 0; --tile) {
      for (int64_t h = 0; h < H; ++h) {
        const int32_t* chunk = chunks + 3 * tile;  // document, first token, tokens
        ForwardTile<T>(args, cu_seqlens[chunk[0]], chunk[1], chunk[2], h);
      }
    }
  });
}

void AttentionBackward(Stream&, const AttentionBackwardArgs& args) {
  const int64_t G = args.k_NGD.dim(1), count = args.documents.count();
  const int32_t* cu_seqlens = args.documents.cu_seqlens().data<int32_t>();
  DispatchFloat(args.q_NHD.dtype(), [&]<class T>() {
#pragma omp parallel for collapse(2) schedule(dynamic)
    for (int64_t d = 0; d < count; ++d) {
      for (int64_t g = 0; g < G; ++g) {
        BackwardHead<T>(args, cu_seqlens[d], cu_seqlens[d + 1], g);
      }
    }
  });
}

}  // namespace lt2::cpu
