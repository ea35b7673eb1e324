// A thread has rows of one column of a head's state. What a part leaves is only waited for where it
// goes on: of two parts no map is read.
#include <utility>

#include "kernels/cuda/scan_chunk.cuh"
#include "kernels/state_fold.h"

namespace lt2::cuda {
namespace {

constexpr int kColumns = 32, kWarps = 8, kThreads = kWarps * kColumns;

struct Fold {
  const float *states_RX, *maps_RX;
  const int32_t* links_R;
  int64_t states_row, maps_row;  // elements
  StateMap map;
  bool reverse;
  int parts, part, k, v;
  const float *from_max_1G, *to_max_1G;  // may be null
  float* out_1GKV;
};

// A block's columns of S or D, [K, 32].
class FoldColumns {
 public:
  __device__ explicit FoldColumns(const Fold& fold)
      : f_(fold),
        head_(blockIdx.y),
        lane_(threadIdx.x % kColumns),
        warp_(threadIdx.x / kColumns),
        column_(blockIdx.x * kColumns + lane_),
        state_(reinterpret_cast<float*>(DynamicShared())),
        before_(state_ + f_.k * kColumns) {}

  __device__ void Run() {
    if (f_.reverse) {
      for (int r = f_.parts - 1; r > f_.part; --r) Cross(r, f_.links_R[r]);
    } else {
      for (int r = 0; r < f_.part; ++r) Cross(r, f_.links_R[r + 1]);
    }
    const bool moves = f_.to_max_1G != nullptr && !zero_;
    const float factor = moves ? expf(f_.to_max_1G[head_] - f_.from_max_1G[head_]) : 1;
    if (column_ >= f_.v) return;
    float* out = f_.out_1GKV + int64_t{head_} * f_.k * f_.v + column_;
    ForEachRow([&](int i) { out[int64_t{i} * f_.v] = zero_ ? 0 : factor * State(i); });
  }

 private:
  static constexpr int kRows = 4;  // of a product at once

  template <class Fn>
  __device__ void ForEachRow(const Fn& fn) const {
    for (int first = kRows * warp_; first < f_.k; first += kRows * kWarps) {
      for (int i = first; i < min(first + kRows, f_.k); ++i) fn(i);
    }
  }
  __device__ float& State(int i) const { return state_[i * kColumns + lane_]; }

  // From one side of part r to the other, where `link` says whether anything goes on.
  __device__ void Cross(int r, int32_t link) {
    if ((link & kContinues) == 0) {
      zero_ = true;
      return;
    }
    if ((f_.links_R[r] & kSpans) == 0) zero_ = true;
    if (!zero_) Map(r);
    const float* own = f_.states_RX + r * f_.states_row + int64_t{head_} * f_.k * f_.v + column_;
    ForEachRow([&](int i) {
      const float more = column_ < f_.v ? own[int64_t{i} * f_.v] : 0;
      State(i) = zero_ ? more : State(i) + more;
    });
    zero_ = false;
  }

  __device__ void Map(int r) {
    const float* map = f_.maps_RX + r * f_.maps_row;
    if (f_.map == StateMap::kMatrix) return Multiply(map + int64_t{head_} * f_.k * f_.k);
    const bool rows = f_.map == StateMap::kRows;
    map += int64_t{head_} * (rows ? f_.k : 1);
    ForEachRow([&](int i) { State(i) *= map[rows ? i : 0]; });
  }
  __device__ void Multiply(const float* map) {
    const int along = f_.reverse ? f_.k : 1, across = f_.reverse ? 1 : f_.k;
    __syncthreads();  // all rows of the state are there, and nobody reads the one before
    std::swap(state_, before_);
    for (int first = kRows * warp_; first < f_.k; first += kRows * kWarps) {
      float sums[kRows] = {};
      for (int d = 0; d < f_.k; ++d) {
        const float at = before_[d * kColumns + lane_];
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
          sums[i] += map[min(first + i, f_.k - 1) * across + d * along] * at;
        }
      }
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        if (first + i < f_.k) State(first + i) = sums[i];
      }
    }
  }

  const Fold& f_;
  const int head_, lane_, warp_, column_;
  float *state_, *before_;
  bool zero_ = true;  // S or D is zero, and not in memory
};

__global__ void __launch_bounds__(kThreads) FoldKernel(const __grid_constant__ Fold fold) {
  FoldColumns(fold).Run();
}

struct FoldMax {
  const float* parts_RX;
  const int32_t* links_R;
  int64_t row, size;  // elements of a part's row, and of a head's state
  int parts, part, heads;
  float *out_1GKV, *out_max_1G, *next_max_1G, *maps_RG;
};

// A thread has one element; the first of a head's, its frames too.
__global__ void __launch_bounds__(kThreads) FoldMaxKernel(const FoldMax f) {
  const int head = blockIdx.y;
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= f.size) return;
  float state = 0, m = 0;
  for (int r = 0; r < f.parts; ++r) {
    const float* row = f.parts_RX + r * f.row;
    const float *maxes = row + f.heads * f.size, *log_maps = maxes + f.heads;
    const bool spans = (f.links_R[r] & kSpans) != 0;
    const bool continues = r + 1 < f.parts && (f.links_R[r + 1] & kContinues) != 0;
    const float own_m = maxes[head], through = spans ? m + log_maps[head] : own_m;
    const float next = fmaxf(own_m, through);
    const float keep = spans ? expf(through - next) : 0, add = expf(own_m - next);
    if (i == 0) f.maps_RG[r * f.heads + head] = keep;
    if (r == f.part) {
      f.out_1GKV[head * f.size + i] = state;
      if (i == 0) f.out_max_1G[head] = m;
      if (i == 0) f.next_max_1G[head] = continues ? next : 0;
    }
    m = continues ? next : 0;
    state = continues ? keep * state + add * row[head * f.size + i] : 0;
  }
}

}  // namespace

void StateFold(Stream& stream, const StateFoldArgs& a) {
  const Fold fold{.states_RX = Data<float>(a.states_RX),
                  .maps_RX = Data<float>(a.maps_RX),
                  .links_R = Data<int32_t>(a.links_R),
                  .states_row = a.states_RX.dim(1),
                  .maps_row = a.maps_RX.dim(1),
                  .map = a.map,
                  .reverse = a.reverse,
                  .parts = static_cast<int>(a.links_R.dim(0)),
                  .part = static_cast<int>(a.part),
                  .k = static_cast<int>(a.out_1GKV.dim(2)),
                  .v = static_cast<int>(a.out_1GKV.dim(3)),
                  .from_max_1G = DataOrNull<float>(a.from_max_1G),
                  .to_max_1G = DataOrNull<float>(a.to_max_1G),
                  .out_1GKV = Data<float>(a.out_1GKV)};
  const int64_t shared = 2 * int64_t{fold.k} * kColumns * int64_t{sizeof(float)};
  AllowShared(FoldKernel, shared);
  const dim3 grid(Blocks(fold.v, kColumns), static_cast<unsigned>(a.out_1GKV.dim(1)));
  FoldKernel<<<grid, kThreads, shared, Handle(stream)>>>(fold);
  CheckLaunch("state_fold");
}

void StateFoldMax(Stream& stream, const StateFoldMaxArgs& a) {
  const int64_t size = a.out_1GKV.dim(2) * a.out_1GKV.dim(3);
  const dim3 grid(Blocks(size, kThreads), static_cast<unsigned>(a.out_1GKV.dim(1)));
  FoldMaxKernel<<<grid, kThreads, 0, Handle(stream)>>>(
      {.parts_RX = Data<float>(a.parts_RX),
       .links_R = Data<int32_t>(a.links_R),
       .row = a.parts_RX.dim(1),
       .size = size,
       .parts = static_cast<int>(a.links_R.dim(0)),
       .part = static_cast<int>(a.part),
       .heads = static_cast<int>(a.out_1GKV.dim(1)),
       .out_1GKV = Data<float>(a.out_1GKV),
       .out_max_1G = Data<float>(a.out_max_1G),
       .next_max_1G = Data<float>(a.next_max_1G),
       .maps_RG = Data<float>(a.maps_RG)});
  CheckLaunch("state_fold_max");
}

}  // namespace lt2::cuda
