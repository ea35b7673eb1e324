// What queries and keys determine of a chunk of an additive state, the mLSTM's among them: all
// chunks and heads at once.
//
//   q_read  = scale from_start Q      k_write = to_end K
//   P_rj    = scale <q_r, k_j> D_rj, j <= r
// where from_start, to_end and D are what RowWeights has: exp(G), exp(G_C - G) and exp(G_r - G_j)
// of a log-decay per row, the mLSTM's weights (scan_mlstm_weights.cuh), or with a decay per key
// channel vectors over channels, D then inside the product.
#pragma once

#include "kernels/cuda/scan_mlstm_weights.cuh"
#include "kernels/cuda/scan_outputs.cuh"
#include "kernels/cuda/scan_pairs.cuh"

namespace lt2::cuda {

enum class Decay { kHead, kChannels, kMlstm };

template <class T>
struct AdditiveInputs {
  ScanShape shape;
  const T *q_NHK, *k_NHK, *v_NGV;
  // Null: no such decay.
  const float *g_NG = nullptr, *g_NGK = nullptr, *log_gamma_G = nullptr;
  MlstmGates gates = {};
  float scale;
};

template <Decay kDecay>
using WeightsOf = std::conditional_t<kDecay == Decay::kMlstm, MlstmWeights, RowWeights>;

// Work of the first warp.
template <Decay kDecay, class T>
__device__ inline void LoadWeights(WeightsOf<kDecay>& weights, const AdditiveInputs<T>& in,
                                   const ChunkPlace& place, int64_t item) {
  const int heads = in.shape.heads, head = static_cast<int>(item % heads);
  const int64_t at = int64_t{place.token} * heads + head;
  if constexpr (kDecay == Decay::kMlstm) {
    weights.template Load<T>(in.gates.i_NH + at, in.gates.f_NH + at, heads, place.rows,
                             in.gates.maxes_CH[item]);
  } else {
    weights.template Load<T>(in.g_NG == nullptr ? nullptr : in.g_NG + at, heads,
                             in.log_gamma_G == nullptr ? 0 : in.log_gamma_G[head], place.rows);
  }
}

// Of the mLSTM alone, [items, 64]: forward the floor of |den|; backward what the gradient of o is
// scaled by to become that of num, and the gradient of den.
template <class T>
struct MlstmRows {
  float *floor = nullptr, *inverse = nullptr, *dden = nullptr;
  const T *do_NHV = nullptr, *o_NHV = nullptr;
  const float* den_NH = nullptr;
};

template <class T>
struct AdditivePreparation {
  AdditiveInputs<T> in;
  ScanOperands<T> operands;
  MlstmRows<T> rows = {};
};

// q_read, attention: null unless queries are to read.
template <class T>
ScanOperands<T> TakeAdditiveOperands(Carver& carver, const ScanShape& n, int64_t chunks,
                                     bool reads = true) {
  const int64_t items = chunks * n.heads, rows = items * kPanel * PaddedWidth(n.k);
  ScanOperands<T> operands = {};
  operands.q_read = reads ? carver.Take<T>(rows) : nullptr;
  operands.k_write = carver.Take<T>(rows);
  operands.attention = reads ? carver.Take<T>(items * kPanel * kPanel) : nullptr;
  operands.decay = carver.Take<float>(items * PaddedWidth(n.k));
  return operands;
}

template <class T>
__device__ inline void PrepareMlstmRows(const MlstmRows<T>& rows, const MlstmWeights& weights,
                                        const ScanShape& n, const ChunkPlace& place, int64_t item) {
  const int r = threadIdx.x / 4;
  const int64_t slot = item * kPanel + r;
  if (rows.floor != nullptr && threadIdx.x % 4 == 0) rows.floor[slot] = weights.floor[r];
  if (rows.inverse == nullptr) return;
  const int64_t at = int64_t{place.token + r} * n.heads + item % n.heads;
  const bool given = rows.do_NHV != nullptr && r < place.rows;
  const float den = given ? rows.den_NH[at] : 1, size = fabsf(den), floor = weights.floor[r];
  const float inverse = 1 / fmaxf(size, floor);
  float dot = 0;
  for (int j = threadIdx.x % 4; j < n.v && given; j += 4) {
    // Rounded as its product with v will have it: where o is near v the two cancel.
    T dnum;
    Put(&dnum, 0, inverse * Get(rows.do_NHV, at * n.v + j));
    dot += Get(&dnum, 0) * Get(rows.o_NHV, at * n.v + j);
  }
  dot += __shfl_xor_sync(~0u, dot, 1);
  dot += __shfl_xor_sync(~0u, dot, 2);
  if (threadIdx.x % 4 != 0) return;
  rows.inverse[slot] = inverse;
  rows.dden[slot] = size <= floor ? 0 : den > 0 ? -dot : dot;
}

template <class T>
int64_t AdditivePreparationShared(bool channels) {
  using Pairs = ChannelPairs<T, false>;
  return 3 * kPanelSize<T> * static_cast<int64_t>(sizeof(T)) +
         (channels ? Pairs::kSumBytes + Pairs::kPanelBytes : 0);
}

template <class T, Decay kDecay>
__global__ void __launch_bounds__(kPanelThreads) PrepareAdditive(AdditivePreparation<T> data) {
  constexpr bool kChannels = kDecay == Decay::kChannels;
  __shared__ WeightsOf<kDecay> weights;
  const AdditiveInputs<T>& in = data.in;
  const ScanShape& n = in.shape;
  const int chunk = blockIdx.x, head = blockIdx.y, key_head = head / (n.heads / n.key_heads);
  const ChunkPlace place = n.Place(chunk);
  if (place.rows == 0) return;
  const int64_t item = int64_t{chunk} * n.heads + head;
  const int64_t at_key = (int64_t{place.token} * n.key_heads + key_head) * n.k;
  const int64_t at_head = int64_t{place.token} * n.heads + head;
  const int64_t key_stride = int64_t{n.key_heads} * n.k;
  const int padded = PaddedWidth(n.k);
  const bool reads = data.operands.q_read != nullptr;
  T *q = reinterpret_cast<T*>(DynamicShared()), *k = q + kPanelSize<T>, *p = k + kPanelSize<T>;
  unsigned char* for_sums = reinterpret_cast<unsigned char*>(p + kPanelSize<T>);
  ChannelPairs<T, false> pairs(for_sums, for_sums + ChannelPairs<T, false>::kSumBytes);

  LoadWeights<kDecay>(weights, in, place, item);
  Accumulator qk, unused;
  for (int panel = 0; panel < PanelsOf(n.k); ++panel) {
    const int begin = panel * kPanel, columns = PanelColumns(padded, panel);
    __syncthreads();
    LoadPanel(q, in.q_NHK + at_key + begin, key_stride, place.rows, n.k - begin);
    LoadPanel(k, in.k_NHK + at_key + begin, key_stride, place.rows, n.k - begin);
    if constexpr (kChannels) {
      pairs.Load(in.g_NGK + at_head * n.k + begin, int64_t{n.heads} * n.k, place.rows, n.k - begin);
    }
    __syncthreads();
    if (reads) {
      if constexpr (kChannels) {
        pairs.AddProducts(q, k, columns, qk, unused);
      } else {
        Multiply<false, true>(qk, q, k, 0, columns);
      }
    }
    const auto store = [&](const T* from, T* of_all, const auto& factor) {
      StorePanel(from, of_all + item * kPanel * padded + begin, padded, kPanel, columns, false,
                 [&](int r, int c, auto& piece) {
                   ScalePiece(piece, [&](int i) { return factor(r, c + i); });
                 });
    };
    if (reads) {
      store(q, data.operands.q_read, [&](int r, int c) {
        return in.scale * (kChannels ? pairs.FromStart(r, c) : weights.from_start[r]);
      });
    }
    store(k, data.operands.k_write,
          [&](int r, int c) { return kChannels ? pairs.ToEnd(r, c) : weights.to_end[r]; });
    const int d = begin + threadIdx.x;
    if (threadIdx.x < columns) {
      data.operands.decay[item * padded + d] = kChannels ? pairs.Whole(threadIdx.x) : weights.whole;
    }
  }
  if (reads) {
    if constexpr (kChannels) pairs.AddDiagonal(qk, unused);
    ForEachPair(qk, [&](int r, int c, float x, float y) {
      PutPair(p, r, c, c <= r ? in.scale * x * weights.template Between<T>(r, c) : 0,
              c + 1 <= r ? in.scale * y * weights.template Between<T>(r, c + 1) : 0);
    });
    __syncthreads();
    StorePanel(p, data.operands.attention + item * kPanel * kPanel, kPanel, kPanel, kPanel);
  }
  if constexpr (kDecay == Decay::kMlstm) PrepareMlstmRows(data.rows, weights, n, place, item);
}

template <class T, Decay kDecay>
void LaunchPrepareAdditive(const Stream& stream, const char* name,
                           const AdditivePreparation<T>& data, int64_t chunks) {
  const dim3 grid(static_cast<unsigned>(chunks), data.in.shape.heads);
  const int64_t shared = AdditivePreparationShared<T>(kDecay == Decay::kChannels);
  const auto kernel = PrepareAdditive<T, kDecay>;
  AllowShared(kernel, shared);
  kernel<<<grid, kPanelThreads, shared, Handle(stream)>>>(data);
  CheckLaunch(name);
}

}  // namespace lt2::cuda
