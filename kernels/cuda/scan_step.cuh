// One token's step of a state [K, width]: a block has 32 columns of one sequence and head, each in
// the registers of 8 threads.
#pragma once

#include "kernels/cuda/common.cuh"
#include "kernels/gpu_limits.h"

namespace lt2::cuda {

inline constexpr int kStepThreads = 256, kStepColumns = 32, kStepParts = 8;
inline constexpr int kStepRows = 32;  // of a thread
inline constexpr int kMostKeys = kStepRows * kStepParts;
static_assert(kMostKeys == gpu::kMostScanKeys);

struct StepPlace {
  int heads, key_heads, k, v, width;  // width: of a state
};
inline StepPlace StepPlaceOf(const Tensor& q_BHK, const Tensor& v_BGV, int64_t width) {
  CHECK_LE(q_BHK.dim(2), gpu::kMostScanKeys) << "channels of a key in a scan on the GPU";
  const auto size = [](int64_t n) { return static_cast<int>(n); };
  return {size(v_BGV.dim(1)), size(q_BHK.dim(1)), size(q_BHK.dim(2)), size(v_BGV.dim(2)),
          size(width)};
}
inline dim3 StepGrid(const StepPlace& place, int64_t batch) {
  return dim3(Blocks(place.width, kStepColumns), place.heads, static_cast<unsigned>(batch));
}

// A head's query, key and exp(g), in shared memory.
struct StepKeys {
  float q[kMostKeys], k[kMostKeys], decay[kMostKeys];

  // g: one number, a head's constant, or one a channel; null where there is no such decay.
  template <class T>
  __device__ void Load(const StepPlace& n, const T* q_BHK, const T* k_BHK, const float* g_BG,
                       const float* g_BGK, const float* log_gamma_G) {
    const int d = threadIdx.x, head = blockIdx.y;
    if (d >= n.k) return;
    const int64_t at_head = int64_t{blockIdx.z} * n.heads + head;
    const int64_t at_key = int64_t{blockIdx.z} * n.key_heads + head / (n.heads / n.key_heads);
    q[d] = Get(q_BHK, at_key * n.k + d);
    k[d] = Get(k_BHK, at_key * n.k + d);
    const float g = g_BG != nullptr          ? g_BG[at_head]
                    : g_BGK != nullptr       ? g_BGK[at_head * n.k + d]
                    : log_gamma_G != nullptr ? log_gamma_G[head]
                                             : 0;
    decay[d] = expf(g);
  }
};
static_assert(kMostKeys <= kStepThreads);

// The thread's rows first_row, first_row + 8, … of its column.
class StepColumns {
 public:
  __device__ StepColumns(const StepPlace& n, float* state_BGKW)
      : column(blockIdx.x * kStepColumns + threadIdx.x % kStepColumns),
        first_row(threadIdx.x / kStepColumns),
        inside(column < n.width),
        at_head(int64_t{blockIdx.z} * n.heads + blockIdx.y),
        at_value(at_head * n.v + column),
        k_(n.k),
        width_(n.width),
        state_(state_BGKW + at_head * n.k * n.width + column) {
#pragma unroll
    for (int i = 0; i < kStepRows; ++i) {
      const int d = first_row + kStepParts * i;
      of_[i] = inside && d < k_ ? state_[int64_t{d} * width_] : 0;
    }
  }
  // fn(row, s).
  template <class Fn>
  __device__ void ForEach(const Fn& fn) {
#pragma unroll
    for (int i = 0; i < kStepRows; ++i) {
      const int d = first_row + kStepParts * i;
      if (d < k_) fn(d, of_[i]);
    }
  }
  __device__ void Store() const {
#pragma unroll
    for (int i = 0; i < kStepRows; ++i) {
      const int d = first_row + kStepParts * i;
      if (inside && d < k_) state_[int64_t{d} * width_] = of_[i];
    }
  }
  // Over the threads of a column; all of them hold the result. All threads must call.
  __device__ float Sum(float x, float* shared) const {
    __syncthreads();
    shared[threadIdx.x] = x;
    __syncthreads();
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kStepParts; ++i)
      sum += shared[i * kStepColumns + threadIdx.x % kStepColumns];
    return sum;
  }

  const int column, first_row;
  const bool inside;
  const int64_t at_head, at_value;

 private:
  const int k_, width_;
  float* state_;
  float of_[kStepRows];
};

}  // namespace lt2::cuda
