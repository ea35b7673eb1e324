// The gradients of one chunk's inputs, once the reverse pass has left dS_out and dU: all chunks at
// once.
//
// With E = T^T dU the gradient of the right-hand side R = beta (V - exp(G) K S_in), and over pairs
// j < r resp. j <= r
//   B = -E U^T ⊙ D          (gradient of A without beta),  j < r
//   W = scale dO U^T ⊙ D    (gradient of <q_r, k_j>),      j <= r
//   dQ     = scale exp(G) dO S_in^T + W K
//   X      = -exp(G) E S_in^T + B K                   dbeta_r = <E_r, v_r> + <X_r, k_r>
//   dWrite = exp(G_C - G) U dS_out^T + W^T Q + B^T (beta K)
//   dK     = beta X + dWrite,  dV = beta E
//   dG_r   = <q_r, dQ_r> + <k_r, beta_r X_r> - <k_r, dWrite_r>, and the last row gets
//            sum_j <k_j, exp(G_C - G_j) dS_out u_j> + exp(G_C) <S_in, dS_out> on top
//   dg_t   = sum of dG_r over r >= t in the chunk
//
// With a decay per key channel D goes inside the products over pairs (B and W are without it), and
// dG and dg stay vectors over channels: the inner products over them are elementwise.
#pragma once

#include "kernels/cuda/scan_delta_prepare.cuh"

namespace lt2::cuda {

template <class T>
struct DeltaGradients {
  DeltaInputs<T> in;
  const T *inverse, *states_CGKV, *dstates_CGKV, *u_NGV;
  const T* do_NGV;  // null: zero
  T* e_NGV;         // dU, which E replaces
  Gradient<T> dq_NHK, dk_NHK, dv_NGV;
  Gradient<float> dg_NG, dg_NGK, dbeta_NG;
  int group;  // value heads of a key head
};

// By warpgroups, for keys of at most 128 channels and pieces of 16 bytes: one decay per row or
// none, and one per key channel. items: chunks times key heads.
void LaunchRowGradients(const Stream& stream, const DeltaGradients<bf16>& data, int items);
void LaunchChannelGradients(const Stream& stream, const DeltaGradients<bf16>& data, int items);

template <class T>
int64_t DeltaGradientsShared(bool channels) {
  return 7 * kPanelSize<T> * static_cast<int64_t>(sizeof(T)) +
         (channels ? ChannelPairs<T, true>::kSumBytes : 0);
}

template <class T, bool kChannels>
class DeltaChunkGradients {
 public:
  // What is small, in shared memory.
  struct Small {
    RowWeights decays;
    float beta[kPanel], rows_dg[kRowPartials], rows_dbeta[kRowPartials];
    float crossing[kPanel], columns[kColumnPartials];
    double at_end[kPanel];
  };

  __device__ DeltaChunkGradients(const DeltaGradients<T>& data, Small& small)
      : data_(data),
        n_(data.in.shape),
        small_(small),
        place_(PlaceOf(n_.chunks, blockIdx.x)),
        w_(reinterpret_cast<T*>(DynamicShared())),
        b_(w_ + kPanelSize<T>),
        tiles_(b_ + kPanelSize<T>),
        pairs_(tiles_ + 5 * kPanelSize<T>, Tile(3)) {}

  // The value heads of one key head, one after the other.
  __device__ void Run(int key_head) {
    if (place_.rows == 0) return;
    const int group = n_.heads / n_.key_heads;
    for (int i = 0; i < group; ++i) RunHead(key_head * group + i, key_head, i == 0);
  }

 private:
  __device__ T* Tile(int i) const { return tiles_ + i * kPanelSize<T>; }
  // Row r of the head, in x [N, G, width].
  __device__ int64_t AtHead(int width) const {
    return (int64_t{place_.token} * n_.heads + head_) * width;
  }
  __device__ void LoadValues(T* panel, const T* x_NGV, int begin) const {
    LoadPanel(panel, x_NGV == nullptr ? nullptr : x_NGV + AtHead(n_.v) + begin,
              int64_t{n_.heads} * n_.v, place_.rows, n_.v - begin);
  }
  template <class Fn>
  __device__ void StoreValues(const T* panel, T* x_NGV, int begin, bool add, const Fn& fn) const {
    StorePanel(panel, x_NGV + AtHead(n_.v) + begin, int64_t{n_.heads} * n_.v, place_.rows,
               n_.v - begin, add, fn);
  }

  __device__ void RunHead(int head, int key_head, bool first) {
    head_ = head;
    item_ = int64_t{blockIdx.x} * n_.heads + head;
    __syncthreads();
    const float* g = data_.in.g_NG;
    small_.decays.template Load<T>(g == nullptr ? nullptr : g + AtHead(1), n_.heads, 0,
                                   place_.rows);
    if (threadIdx.x < kPanel) {
      const int r = threadIdx.x;
      small_.beta[r] = r < place_.rows ? data_.in.beta_NG[AtHead(1) + int64_t{r} * n_.heads] : 0;
      small_.at_end[r] = 0;
    }
    for (int i = threadIdx.x; i < kRowPartials; i += kPanelThreads) {
      small_.rows_dg[i] = small_.rows_dbeta[i] = 0;
    }
    PairGradients();
    for (int p = 0; p < PanelsOf(n_.k); ++p) KeyGradients(p, key_head, first);
    __syncthreads();
    RowGradients();
  }

  // E and dV, and from them W and B.
  __device__ void PairGradients() {
    LoadPanel(w_, data_.inverse + item_ * kPanel * kPanel, kPanel, kPanel, kPanel);
    T *du = Tile(0), *v = Tile(1), *u = Tile(2), *d_o = Tile(3), *e = Tile(4);
    Accumulator w, b;
    for (int begin = 0; begin < n_.v; begin += kPanel) {
      const int columns = min(kPanel, PaddedWidth(n_.v - begin));
      LoadValues(du, data_.e_NGV, begin);
      LoadValues(v, data_.in.v_NGV, begin);
      LoadValues(u, data_.u_NGV, begin);
      LoadValues(d_o, data_.do_NGV, begin);
      __syncthreads();
      Accumulator of_e;
      Multiply<true, false>(of_e, w_, du, 0, kPanel);
      ForEachPair(of_e, [&](int r, int c, float x, float y) { PutPair(e, r, c, x, y); });
      AddRowSums(of_e, small_.rows_dbeta, [&](int r, int c, float x, float y) {
        const float2 of_v = GetPair(v, r, c);
        return x * of_v.x + y * of_v.y;
      });
      __syncthreads();
      StoreValues(e, data_.e_NGV, begin, false, [](int, int, auto&) {});
      if (data_.dv_NGV.to != nullptr) {
        StoreValues(e, data_.dv_NGV.to, begin, data_.dv_NGV.add, [&](int r, int, auto& piece) {
          ScalePiece(piece, [&](int) { return small_.beta[r]; });
        });
      }
      Multiply<false, true>(w, d_o, u, 0, columns);
      Multiply<false, true>(b, e, u, 0, columns);
      __syncthreads();
    }
    const float scale = data_.in.scale;
    const auto decay = [&](int r, int j) { return small_.decays.template Between<T>(r, j); };
    ForEachPair(w, [&](int r, int c, float x, float y) {
      PutPair(w_, r, c, c <= r ? scale * x * decay(r, c) : 0,
              c + 1 <= r ? scale * y * decay(r, c + 1) : 0);
    });
    ForEachPair(b, [&](int r, int c, float x, float y) {
      PutPair(b_, r, c, c < r ? -x * decay(r, c) : 0, c + 1 < r ? -y * decay(r, c + 1) : 0);
    });
  }

  // Those of 64 key channels.
  __device__ void KeyGradients(int p, int key_head, bool first) {
    Accumulator dq, x, write;
    StateProducts(p, dq, x, write);
    const int columns = n_.k - p * kPanel;
    const int64_t at_key = (int64_t{place_.token} * n_.key_heads + key_head) * n_.k + p * kPanel;
    const int64_t stride = int64_t{n_.key_heads} * n_.k;
    T *q = Tile(0), *k = Tile(1), *beta_k = Tile(2);
    LoadPanel(q, data_.in.q_NHK + at_key, stride, place_.rows, columns);
    LoadPanel(k, data_.in.k_NHK + at_key, stride, place_.rows, columns);
    LoadPanel(
        beta_k, data_.in.k_NHK + at_key, stride, place_.rows, columns,
        [&](int r, int, auto& piece) { ScalePiece(piece, [&](int) { return small_.beta[r]; }); });
    if constexpr (kChannels) {
      pairs_.Load(data_.in.g_NGK + AtHead(n_.k) + p * kPanel, int64_t{n_.heads} * n_.k, place_.rows,
                  columns);
    }
    __syncthreads();
    const auto scale = [&](Accumulator& c, const auto& factor) {
      ForEachPair(c, [&](int r, int column, float& x, float& y) {
        x *= factor(r, column), y *= factor(r, column + 1);
      });
    };
    const auto from_start = [&](int r, int c) {
      return kChannels ? pairs_.FromStart(r, c) : small_.decays.from_start[r];
    };
    scale(dq, [&](int r, int c) { return data_.in.scale * from_start(r, c); });
    scale(x, [&](int r, int c) { return -from_start(r, c); });
    scale(write,
          [&](int r, int c) { return kChannels ? pairs_.ToEnd(r, c) : small_.decays.to_end[r]; });
    AtEnd(write, k);
    if constexpr (kChannels) {
      pairs_.AddGradients({.w = w_, .x = q, .w2 = b_, .x2 = beta_k, .y = k, .free = Tile(3)}, dq, x,
                          write);
    } else {
      Multiply<false, false>(dq, w_, k, 0, kPanel);
      Multiply<false, false>(x, b_, k, 0, kPanel);
      Multiply<true, false>(write, w_, q, 0, kPanel);
      Multiply<true, false>(write, b_, beta_k, 0, kPanel);
    }
    AddToRows(dq, x, write, q, k);
    if constexpr (kChannels) StoreChannelDecays(p, dq, x, write, q, k);
    StoreKeys(dq, data_.dq_NHK, at_key, columns, first);
    AddScaled(x, write);
    StoreKeys(write, data_.dk_NHK, at_key, columns, first);
  }

  // dO S_in^T, E S_in^T and U dS_out^T, and the channels' rowsum(S_in ⊙ dS_out).
  __device__ void StateProducts(int p, Accumulator& dq, Accumulator& x, Accumulator& write) {
    T *d_o = Tile(0), *e = Tile(1), *u = Tile(2), *state = Tile(3), *dstate = Tile(4);
    const int64_t at_state = (item_ * n_.k + p * kPanel) * n_.v;
    float crossing = 0;  // of channel threadIdx.x / 4, a quarter of the columns
    for (int begin = 0; begin < n_.v; begin += kPanel) {
      const int columns = min(kPanel, PaddedWidth(n_.v - begin));
      __syncthreads();
      LoadValues(d_o, data_.do_NGV, begin);
      LoadValues(e, data_.e_NGV, begin);
      LoadValues(u, data_.u_NGV, begin);
      LoadPanel(state, data_.states_CGKV + at_state + begin, n_.v, n_.k - p * kPanel, n_.v - begin);
      LoadPanel(dstate, data_.dstates_CGKV + at_state + begin, n_.v, n_.k - p * kPanel,
                n_.v - begin);
      __syncthreads();
      Multiply<false, true>(dq, d_o, state, 0, columns);
      Multiply<false, true>(x, e, state, 0, columns);
      Multiply<false, true>(write, u, dstate, 0, columns);
      for (int i = 0; i < kPanel / 4; i += 2) {
        const int c = (threadIdx.x % 4 * 2 + i * 4) % kPanel;
        const float2 s = GetPair(state, threadIdx.x / 4, c),
                     ds = GetPair(dstate, threadIdx.x / 4, c);
        crossing += s.x * ds.x + s.y * ds.y;
      }
    }
    crossing += __shfl_xor_sync(~0u, crossing, 1);
    crossing += __shfl_xor_sync(~0u, crossing, 2);
    if (threadIdx.x % 4 == 0) small_.crossing[threadIdx.x / 4] = crossing;
    for (int i = threadIdx.x; i < kColumnPartials; i += kPanelThreads) small_.columns[i] = 0;
    __syncthreads();
  }

  // What the last row's dG gets on top, per channel of these 64, or of all panels so far; `write`
  // has only the state's share yet.
  __device__ void AtEnd(Accumulator& write, const T* k) {
    AddColumnSums(write, small_.columns, [&](int r, int c, float x, float y) {
      const float2 of_k = GetPair(k, r, c);
      return make_float2(of_k.x * x, of_k.y * y);
    });
    __syncthreads();
    if (threadIdx.x >= kPanel) return;
    const int c = threadIdx.x;
    const float whole = kChannels ? pairs_.Whole(c) : small_.decays.whole;
    const double value = double{small_.columns[c]} + double{small_.columns[kPanel + c]} +
                         double{whole * small_.crossing[c]};
    small_.at_end[c] = kChannels ? value : small_.at_end[c] + value;
  }

  __device__ void AddToRows(Accumulator& dq, Accumulator& x, Accumulator& write, const T* q,
                            const T* k) {
    AddRowSums(x, small_.rows_dbeta, [&](int r, int c, float a, float b) {
      const float2 of_k = GetPair(k, r, c);
      return of_k.x * a + of_k.y * b;
    });
    if (kChannels || data_.dg_NG.to == nullptr) return;
    AddRowSums(dq, small_.rows_dg, [&](int r, int c, float a, float b) {
      const float2 of_q = GetPair(q, r, c);
      return of_q.x * a + of_q.y * b;
    });
    AddRowSums(x, small_.rows_dg, [&](int r, int c, float a, float b) {
      const float2 of_k = GetPair(k, r, c);
      return small_.beta[r] * (of_k.x * a + of_k.y * b);
    });
    AddRowSums(write, small_.rows_dg, [&](int r, int c, float a, float b) {
      const float2 of_k = GetPair(k, r, c);
      return -(of_k.x * a + of_k.y * b);
    });
  }

  __device__ void StoreChannelDecays(int p, Accumulator& dq, Accumulator& x, Accumulator& write,
                                     const T* q, const T* k) {
    if (data_.dg_NGK.to == nullptr) return;
    float* staged = reinterpret_cast<float*>(Tile(3));
    __syncthreads();
    const auto put = [&](Accumulator& from, const T* by, bool add, const auto& factor) {
      ForEachPair(from, [&](int r, int c, float a, float b) {
        const float2 of = GetPair(by, r, c), there = GetPair(staged, r, c);
        const float f = factor(r);
        PutPair(staged, r, c, (add ? there.x : 0) + f * of.x * a,
                (add ? there.y : 0) + f * of.y * b);
      });
    };
    put(dq, q, false, [](int) { return 1.0f; });
    put(x, k, true, [&](int r) { return small_.beta[r]; });
    put(write, k, true, [](int) { return -1.0f; });
    __syncthreads();
    StoreDecaySums(staged, nullptr, small_.at_end[threadIdx.x % kPanel],
                   data_.dg_NGK.to + AtHead(n_.k) + p * kPanel, int64_t{n_.heads} * n_.k,
                   place_.rows, n_.k - p * kPanel, data_.dg_NGK.add);
  }

  // write += beta x.
  __device__ void AddScaled(Accumulator& x, Accumulator& write) {
    ForEachPair(x,
                [&](int r, int, float& a, float& b) { a *= small_.beta[r], b *= small_.beta[r]; });
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      write.at[i / 8][i / 4 % 2][i % 4] += x.at[i / 8][i / 4 % 2][i % 4];
    }
  }

  __device__ void StoreKeys(Accumulator& from, const Gradient<T>& grad, int64_t at, int columns,
                            bool first) {
    if (grad.to == nullptr) return;
    __syncthreads();
    ForEachPair(from, [&](int r, int c, float x, float y) { PutPair(Tile(3), r, c, x, y); });
    __syncthreads();
    StorePanel(Tile(3), grad.to + at, int64_t{n_.key_heads} * n_.k, place_.rows, columns,
               grad.add || !first);
  }

  __device__ void RowGradients() {
    const int r = threadIdx.x;
    if (r >= place_.rows) return;
    const int64_t at = AtHead(1) + int64_t{r} * n_.heads;
    if (data_.dbeta_NG.to != nullptr) {
      PutOrAdd(data_.dbeta_NG.to, at, RowSum(small_.rows_dbeta, r), data_.dbeta_NG.add);
    }
    if (kChannels || data_.dg_NG.to == nullptr) return;
    double later = 0;
    for (int c = 0; c < kPanel; ++c) later += small_.at_end[c];
    for (int i = place_.rows - 1; i >= r; --i) later += double{RowSum(small_.rows_dg, i)};
    PutOrAdd(data_.dg_NG.to, at, static_cast<float>(later), data_.dg_NG.add);
  }

  const DeltaGradients<T>& data_;
  const ScanShape& n_;
  Small& small_;
  const ChunkPlace place_;
  T *w_, *b_;  // W, before which T is there, and B
  T* tiles_;   // five
  ChannelPairs<T, true> pairs_;
  int head_ = 0;
  int64_t item_ = 0;
};

template <class T, bool kChannels>
__global__ void __launch_bounds__(kPanelThreads, kChannels ? 1 : 2)
    DeltaGradientsKernel(DeltaGradients<T> data) {
  __shared__ typename DeltaChunkGradients<T, kChannels>::Small small;
  DeltaChunkGradients<T, kChannels>(data, small).Run(blockIdx.y);
}

}  // namespace lt2::cuda
