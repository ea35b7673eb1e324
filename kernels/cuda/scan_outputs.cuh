// What a chunk makes of the state it begins with, or ends with, and of its values: all chunks at
// once.
//
//   kRead         o = q_read S + P u
//   kNormalised   [num, den] = q_read S + P [v, 1],  o = num / max(|den|, floor)
//   kTransposed   dv = k_write dS + P^T dO
#pragma once

#include "kernels/cuda/scan_states.cuh"

namespace lt2::cuda {

enum class Outputs { kRead, kNormalised, kTransposed };

template <class T>
struct ChunkOutputs {
  ScanShape shape;
  const T *rows, *attention;  // of ScanOperands
  const T* states_CGKV;
  ValueRows<T> values;
  T* o_NGV;
  bool add = false;
  const float* floor = nullptr;  // [items, 64]
  float* den_NG = nullptr;       // may be null
};

// Of row threadIdx.x / 4 of two matrices' product, the share of one in four inner indices.
template <class T>
__device__ inline float DenominatorShare(const T* panel, int inner, const auto& right) {
  float sum = 0;
  for (int c = threadIdx.x % 4; c < inner; c += 4) {
    sum += Get(panel, threadIdx.x / 4 * kPanelStride<T> + c) * right(c);
  }
  return sum;
}

template <class T, Outputs kOutputs>
__global__ void __launch_bounds__(kPanelThreads) ChunkOutputsKernel(ChunkOutputs<T> data) {
  __shared__ float inverse[kPanel];
  const ScanShape& n = data.shape;
  const int chunk = blockIdx.x, head = blockIdx.y, begin = blockIdx.z * kPanel;
  const ChunkPlace place = PlaceOf(n.chunks, chunk);
  if (place.rows == 0) return;
  const int64_t item = int64_t{chunk} * n.heads + head;
  const int padded = PaddedWidth(n.k);
  T* p_panel = reinterpret_cast<T*>(DynamicShared());
  T *value_panel = p_panel + kPanelSize<T>, *row_panel = value_panel + kPanelSize<T>;
  T* state_panel = row_panel + kPanelSize<T>;
  LoadPanel(p_panel, data.attention + item * kPanel * kPanel, kPanel, kPanel, kPanel);
  data.values.Load(value_panel, place, item, begin);
  Accumulator o;
  float den = 0;
  for (int p = 0; p < PanelsOf(n.k); ++p) {
    const T* states = data.states_CGKV + (item * n.k + p * kPanel) * n.width;
    LoadPanel(row_panel, data.rows + item * kPanel * padded + p * kPanel, padded, kPanel,
              PanelColumns(padded, p));
    LoadPanel(state_panel, states + begin, n.width, n.k - p * kPanel, n.width - begin);
    __syncthreads();
    Multiply<false, false>(o, row_panel, state_panel, 0, PanelColumns(padded, p));
    if constexpr (kOutputs == Outputs::kNormalised) {
      den += DenominatorShare(row_panel, min(kPanel, n.k - p * kPanel),
                              [&](int c) { return Get(states, int64_t{c} * n.width + n.v); });
    }
    __syncthreads();
  }
  Multiply<kOutputs == Outputs::kTransposed, false>(o, p_panel, value_panel, 0, kPanel);
  if constexpr (kOutputs == Outputs::kNormalised) {
    den += DenominatorShare(p_panel, place.rows, [](int) { return 1.0f; });
    den += __shfl_xor_sync(~0u, den, 1);
    den += __shfl_xor_sync(~0u, den, 2);
    const int r = threadIdx.x / 4;
    if (threadIdx.x % 4 == 0) {
      inverse[r] = 1 / fmaxf(fabsf(den), data.floor[item * kPanel + r]);
      if (data.den_NG != nullptr && begin == 0 && r < place.rows) {
        data.den_NG[int64_t{place.token + r} * n.heads + head] = den;
      }
    }
    __syncthreads();
  }
  ForEachPair(o, [&](int r, int c, float x, float y) {
    const float factor = kOutputs == Outputs::kNormalised ? inverse[r] : 1;
    PutPair(row_panel, r, c, factor * x, factor * y);
  });
  __syncthreads();
  StorePanel(row_panel, data.o_NGV + (int64_t{place.token} * n.heads + head) * n.v + begin,
             int64_t{n.heads} * n.v, place.rows, n.v - begin, data.add);
}

template <class T, Outputs kOutputs>
void LaunchChunkOutputs(const Stream& stream, const char* name, const ChunkOutputs<T>& data,
                        int64_t chunks) {
  const ScanShape& n = data.shape;
  const dim3 grid(static_cast<unsigned>(chunks), n.heads, PanelsOf(n.v));
  const int64_t shared = 4 * kPanelSize<T> * static_cast<int64_t>(sizeof(T));
  const auto kernel = ChunkOutputsKernel<T, kOutputs>;
  AllowShared(kernel, shared);
  kernel<<<grid, kPanelThreads, shared, Handle(stream)>>>(data);
  CheckLaunch(name);
}

}  // namespace lt2::cuda
