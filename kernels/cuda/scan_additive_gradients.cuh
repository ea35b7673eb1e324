// The gradients of one chunk's queries, keys and decays, once the reverse pass has left dS_out: all
// chunks at once. With D, from_start and to_end those of RowWeights (scan_additive_prepare.cuh)
//
//   W  = scale dO V^T ⊙ D                               (gradient of <q_r, k_j>), j <= r
//   dQ = scale from_start ⊙ (dO S_in^T) + W K
//   dK = dWrite + W^T Q,  dWrite = to_end ⊙ (V dS_out^T)
//
// A log-decay g_t sees what passes it: the state, whole <S_in, dS_out>; what earlier rows write for
// later chunks, sum over j < t of <k_j, dwrite_j>; what this and later rows read from the state,
// sum over r >= t of <q_r, dq_r> without pairs; and the pairs r >= t > j, W_rj <q_r, k_j>. The
// mLSTM's forget gate is such a decay; an input gate has its row's write and its column of pairs.
//
// With a decay per key channel D goes inside the products over pairs, the inner products above are
// elementwise, and a channel's pairs are q_r dq_r - k_r dk_r summed over r >= t. A row's pair with
// itself, which strong decay leaves as by far the largest term, is in neither: it is added to dq
// and dk last.
#pragma once

#include "kernels/cuda/scan_additive_prepare.cuh"

namespace lt2::cuda {

template <class T>
struct AdditiveGradients {
  AdditiveInputs<T> in;
  const T *states_CGKV, *dstates_CGKV;
  ValueRows<T> values, d_o;
  Gradient<T> dq_NHK, dk_NHK;
  Gradient<float> dg_NG, dg_NGK, di_NH;  // dg_NG: or of the mLSTM's forget gate
};

template <class T>
int64_t AdditiveGradientsShared(bool channels) {
  return (channels ? 7 : 5) * kPanelSize<T> * static_cast<int64_t>(sizeof(T)) +
         (channels ? ChannelPairs<T, false>::kSumBytes : 0);
}

template <class T, Decay kDecay>
class AdditiveChunkGradients {
 public:
  static constexpr bool kChannels = kDecay == Decay::kChannels;

  // What is small, in shared memory.
  struct Small {
    WeightsOf<kDecay> weights;
    float own[kPanel], crossing[kPanel];
    float reads[kRowPartials], writes[kRowPartials];
    double at_end[kPanel], across[kPanel], column[kPanel];
  };

  __device__ AdditiveChunkGradients(const AdditiveGradients<T>& data, Small& small)
      : data_(data),
        n_(data.in.shape),
        small_(small),
        place_(PlaceOf(n_.chunks, blockIdx.x)),
        w_(reinterpret_cast<T*>(DynamicShared())),
        tiles_(w_ + kPanelSize<T>),
        pairs_(tiles_ + 6 * kPanelSize<T>, nullptr) {}

  // The value heads of one key head, one after the other.
  __device__ void Run(int key_head) {
    if (place_.rows == 0) return;
    const int group = n_.heads / n_.key_heads;
    for (int i = 0; i < group; ++i) RunHead(key_head * group + i, key_head, i == 0);
  }

 private:
  __device__ T* Tile(int i) const { return tiles_ + i * kPanelSize<T>; }
  __device__ int64_t AtHead(int width) const {
    return (int64_t{place_.token} * n_.heads + head_) * width;
  }

  __device__ void RunHead(int head, int key_head, bool first) {
    head_ = head;
    item_ = int64_t{blockIdx.x} * n_.heads + head;
    __syncthreads();
    LoadWeights<kDecay>(small_.weights, data_.in, place_, item_);
    for (int i = threadIdx.x; i < kRowPartials; i += kPanelThreads) {
      small_.reads[i] = small_.writes[i] = 0;
    }
    if (threadIdx.x < kPanel) small_.at_end[threadIdx.x] = 0;
    Accumulator w, qk;
    PairGradients(w);
    for (int p = 0; p < PanelsOf(n_.k); ++p) KeyGradients(p, key_head, first, qk);
    if constexpr (!kChannels) GateGradients(w, qk);
  }

  // W, in registers and in w_.
  __device__ void PairGradients(Accumulator& w) {
    T *d_o = Tile(0), *values = Tile(1);
    ValueRows<T> narrow_values = data_.values, narrow_do = data_.d_o;
    narrow_values.widened = narrow_do.widened = false;
    for (int begin = 0; begin < n_.v; begin += kPanel) {
      narrow_do.Load(d_o, place_, item_, begin);
      narrow_values.Load(values, place_, item_, begin);
      __syncthreads();
      Multiply<false, true>(w, d_o, values, 0, min(kPanel, PaddedWidth(n_.v - begin)));
      __syncthreads();
    }
    if constexpr (kDecay == Decay::kMlstm) {  // the columns of ones, without rounding
      ForEachPair(w, [&](int r, int, float& x, float& y) {
        const float dden = data_.d_o.last[item_ * kPanel + r];
        x += dden, y += dden;
      });
    }
    const float scale = data_.in.scale;
    ForEachPair(w, [&](int r, int c, float& x, float& y) {
      if constexpr (kChannels) {
        if (c == r) small_.own[r] = scale * x;
        if (c + 1 == r) small_.own[r] = scale * y;
        x = c < r ? scale * x : 0;
        y = c + 1 < r ? scale * y : 0;
      } else {
        x = c <= r ? scale * x * small_.weights.template Between<T>(r, c) : 0;
        y = c + 1 <= r ? scale * y * small_.weights.template Between<T>(r, c + 1) : 0;
      }
      PutPair(w_, r, c, x, y);
    });
  }

  // Those of 64 key channels; qk gets their share of <q_r, k_j>.
  __device__ void KeyGradients(int p, int key_head, bool first, Accumulator& qk) {
    Accumulator dq, write;
    StateProducts(p, dq, write);
    const int columns = n_.k - p * kPanel;
    const int64_t at_key = (int64_t{place_.token} * n_.key_heads + key_head) * n_.k + p * kPanel;
    const int64_t stride = int64_t{n_.key_heads} * n_.k;
    T *q = Tile(0), *k = Tile(1);
    LoadPanel(q, data_.in.q_NHK + at_key, stride, place_.rows, columns);
    LoadPanel(k, data_.in.k_NHK + at_key, stride, place_.rows, columns);
    if constexpr (kChannels) {
      pairs_.Load(data_.in.g_NGK + AtHead(n_.k) + p * kPanel, int64_t{n_.heads} * n_.k, place_.rows,
                  columns);
    }
    __syncthreads();
    ForEachPair(dq, [&](int r, int c, float& x, float& y) {
      x *= data_.in.scale * (kChannels ? pairs_.FromStart(r, c) : small_.weights.from_start[r]);
      y *= data_.in.scale * (kChannels ? pairs_.FromStart(r, c + 1) : small_.weights.from_start[r]);
    });
    ForEachPair(write, [&](int r, int c, float& x, float& y) {
      x *= kChannels ? pairs_.ToEnd(r, c) : small_.weights.to_end[r];
      y *= kChannels ? pairs_.ToEnd(r, c + 1) : small_.weights.to_end[r];
    });
    if constexpr (kChannels) {
      AddChannelPairs(p, q, k, dq, write);
    } else {
      AddRowSums(dq, small_.reads, [&](int r, int c, float x, float y) {
        const float2 of_q = GetPair(q, r, c);
        return of_q.x * x + of_q.y * y;
      });
      AddRowSums(write, small_.writes, [&](int r, int c, float x, float y) {
        const float2 of_k = GetPair(k, r, c);
        return of_k.x * x + of_k.y * y;
      });
      Multiply<false, true>(qk, q, k, 0, min(kPanel, PaddedWidth(columns)));
      Multiply<false, false>(dq, w_, k, 0, kPanel);
      Multiply<true, false>(write, w_, q, 0, kPanel);
    }
    StoreKeys(dq, data_.dq_NHK, at_key, columns, first);
    StoreKeys(write, data_.dk_NHK, at_key, columns, first);
  }

  // dO S_in^T and V dS_out^T, and the channels' rowsum(S_in ⊙ dS_out).
  __device__ void StateProducts(int p, Accumulator& dq, Accumulator& write) {
    T *d_o = Tile(0), *values = Tile(1), *state = Tile(2), *dstate = Tile(3);
    const int64_t at_state = (item_ * n_.k + p * kPanel) * n_.width;
    const int channel = threadIdx.x / 4, rows = n_.k - p * kPanel;
    float crossing = 0;  // of the channel, a quarter of the columns
    for (int begin = 0; begin < n_.width; begin += kPanel) {
      const int left = n_.width - begin, columns = min(kPanel, PaddedWidth(left));
      __syncthreads();
      data_.d_o.Load(d_o, place_, item_, begin);
      data_.values.Load(values, place_, item_, begin);
      LoadPanel(state, data_.states_CGKV + at_state + begin, n_.width, rows, left);
      LoadPanel(dstate, data_.dstates_CGKV + at_state + begin, n_.width, rows, left);
      __syncthreads();
      Multiply<false, true>(dq, d_o, state, 0, columns);
      Multiply<false, true>(write, values, dstate, 0, columns);
      for (int c = threadIdx.x % 4 * 2; c < kPanel; c += 8) {
        const float2 s = GetPair(state, channel, c), ds = GetPair(dstate, channel, c);
        crossing += s.x * ds.x + s.y * ds.y;
      }
    }
    crossing += __shfl_xor_sync(~0u, crossing, 1);
    crossing += __shfl_xor_sync(~0u, crossing, 2);
    if (threadIdx.x % 4 == 0) {
      small_.crossing[channel] = crossing;
      small_.at_end[channel] += double{crossing};
    }
    __syncthreads();
  }

  __device__ void AddChannelPairs(int p, const T* q, const T* k, Accumulator& dq,
                                  Accumulator& write) {
    Accumulator dk, unused;
    pairs_.AddGradients({.w = w_, .x = q, .w2 = nullptr, .x2 = nullptr, .y = k, .free = Tile(2)},
                        dq, unused, dk);
    if (data_.dg_NGK.to != nullptr) StoreChannelDecays(p, q, k, dq, dk, write);
    const auto add_own = [&](Accumulator& to, const T* from) {
      ForEachPair(to, [&](int r, int c, float& x, float& y) {
        const float2 pair = GetPair(from, r, c);
        x += small_.own[r] * pair.x, y += small_.own[r] * pair.y;
      });
    };
    add_own(dq, k);
    add_own(write, q);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      write.at[i / 8][i / 4 % 2][i % 4] += dk.at[i / 8][i / 4 % 2][i % 4];
    }
  }

  __device__ void StoreChannelDecays(int p, const T* q, const T* k, Accumulator& dq,
                                     Accumulator& dk, Accumulator& write) {
    float *later = reinterpret_cast<float*>(Tile(2)), *earlier = reinterpret_cast<float*>(Tile(4));
    __syncthreads();
    ForEachPair(dq, [&](int r, int c, float x, float y) {
      const float2 of_q = GetPair(q, r, c);
      PutPair(later, r, c, of_q.x * x, of_q.y * y);
    });
    ForEachPair(dk, [&](int r, int c, float x, float y) {
      const float2 of_k = GetPair(k, r, c), there = GetPair(later, r, c);
      PutPair(later, r, c, there.x - of_k.x * x, there.y - of_k.y * y);
    });
    ForEachPair(write, [&](int r, int c, float x, float y) {
      const float2 of_k = GetPair(k, r, c);
      PutPair(earlier, r, c, of_k.x * x, of_k.y * y);
    });
    __syncthreads();
    const int c = threadIdx.x % kPanel;
    StoreDecaySums(later, earlier, double{pairs_.Whole(c) * small_.crossing[c]},
                   data_.dg_NGK.to + AtHead(n_.k) + p * kPanel, int64_t{n_.heads} * n_.k,
                   place_.rows, n_.k - p * kPanel, data_.dg_NGK.add);
  }

  __device__ void StoreKeys(Accumulator& from, const Gradient<T>& grad, int64_t at, int columns,
                            bool first) {
    if (grad.to == nullptr) return;
    __syncthreads();
    ForEachPair(from, [&](int r, int c, float x, float y) { PutPair(Tile(2), r, c, x, y); });
    __syncthreads();
    StorePanel(Tile(2), grad.to + at, int64_t{n_.key_heads} * n_.k, place_.rows, columns,
               grad.add || !first);
  }

  // Pairs across a row are summed as they are: differences of sums over rows would cancel.
  __device__ void GateGradients(Accumulator& w, Accumulator& qk) {
    if (data_.dg_NG.to == nullptr && data_.di_NH.to == nullptr) return;
    constexpr int kStride = kPanelStride<float>;
    float* pairs = reinterpret_cast<float*>(Tile(2));
    __syncthreads();
    ForEachPair(w, [&](int r, int c, float x, float y) { PutPair(pairs, r, c, x, y); });
    ForEachPair(qk, [&](int r, int c, float x, float y) {
      const float2 of_w = GetPair(pairs, r, c);
      PutPair(pairs, r, c, of_w.x * x, of_w.y * y);
    });
    __syncthreads();
    const int t = threadIdx.x / 4, part = threadIdx.x % 4;
    double column = 0;
    for (int r = part; r < kPanel; r += 4) column += double{pairs[r * kStride + t]};
    __syncthreads();
    // A row's pairs become the sums of those before them.
    float* quarter = pairs + t * kStride + part * kTile;
    double sum = 0, before = 0;
    for (int i = 0; i < kTile; ++i) sum += double{quarter[i]};
    for (int p = 0; p < 3; ++p) {
      const double of_part = __shfl_sync(~0u, sum, threadIdx.x % 32 / 4 * 4 + p);
      if (p < part) before += of_part;
    }
    for (int i = 0; i < kTile; ++i) {
      const float pair = quarter[i];
      quarter[i] = static_cast<float>(before);
      before += double{pair};
    }
    __syncthreads();
    double across = 0;
    for (int r = t + part; r < kPanel; r += 4) across += double{pairs[r * kStride + t]};
    for (int step = 1; step < 4; step *= 2) {
      across += __shfl_xor_sync(~0u, across, step);
      column += __shfl_xor_sync(~0u, column, step);
    }
    if (part == 0) {
      small_.across[t] = across;
      small_.column[t] = column;
    }
    __syncthreads();
    if (threadIdx.x < place_.rows) StoreGates(threadIdx.x);
  }
  __device__ void StoreGates(int t) {
    double sum = 0;
    for (int c = 0; c < kPanel; ++c) sum += small_.at_end[c];
    sum = sum * double{small_.weights.whole} + small_.across[t];
    for (int r = place_.rows - 1; r >= t; --r) sum += double{RowSum(small_.reads, r)};
    for (int j = 0; j < t; ++j) sum += double{RowSum(small_.writes, j)};
    const int64_t at = AtHead(1) + int64_t{t} * n_.heads;
    auto dg = static_cast<float>(sum);
    if constexpr (kDecay == Decay::kMlstm) {
      dg *= SigmoidOf<float>(-data_.in.gates.f_NH[at]);
      if (data_.di_NH.to != nullptr) {
        const double di = small_.column[t] + double{RowSum(small_.writes, t)};
        PutOrAdd(data_.di_NH.to, at, static_cast<float>(di), data_.di_NH.add);
      }
    }
    if (data_.dg_NG.to != nullptr) PutOrAdd(data_.dg_NG.to, at, dg, data_.dg_NG.add);
  }

  const AdditiveGradients<T>& data_;
  const ScanShape& n_;
  Small& small_;
  const ChunkPlace place_;
  T* w_;      // W
  T* tiles_;  // four, or with decays per channel six
  ChannelPairs<T, false> pairs_;
  int head_ = 0;
  int64_t item_ = 0;
};

template <class T, Decay kDecay>
__global__ void __launch_bounds__(kPanelThreads, kDecay == Decay::kChannels ? 1 : 2)
    AdditiveGradientsKernel(AdditiveGradients<T> data) {
  __shared__ typename AdditiveChunkGradients<T, kDecay>::Small small;
  AdditiveChunkGradients<T, kDecay>(data, small).Run(blockIdx.y);
}

template <class T, Decay kDecay>
void LaunchAdditiveGradients(const Stream& stream, const char* name,
                             const AdditiveGradients<T>& data, int64_t chunks) {
  const dim3 grid(static_cast<unsigned>(chunks), data.in.shape.key_heads);
  const int64_t shared = AdditiveGradientsShared<T>(kDecay == Decay::kChannels);
  const auto kernel = AdditiveGradientsKernel<T, kDecay>;
  AllowShared(kernel, shared);
  kernel<<<grid, kPanelThreads, shared, Handle(stream)>>>(data);
  CheckLaunch(name);
}

}  // namespace lt2::cuda
