#include "kernels/cuda/column_pass.cuh"
#include "kernels/embedding.h"

namespace lt2::cuda {
namespace {

template <class W, class T, int n>
struct Forward {
  static constexpr int kSums = 0;
  int64_t d;
  int64_t first_row, rows, vocabulary;
  const int32_t* ids;
  const W* w_VD;
  T* y_ND;

  using Columns = int64_t;
  using Row = Piece<n>;
  __device__ Columns AtColumn(int64_t column) const { return column; }
  __device__ Row Load(int64_t row, int64_t, const Columns& column) const {
    if (ids[row] < 0 || ids[row] >= vocabulary) __trap();
    const int64_t of = ids[row] - first_row;
    if (of < 0 || of >= rows) return {};
    return cuda::Load<n>(w_VD + of * d + column);
  }
  __device__ void Use(int64_t, int64_t at, const Columns&, const Row& row, Piece<n>*) const {
    Store<n>(y_ND + at, row);
  }
};

template <class W, class T>
void RunForward(const Stream& stream, const EmbeddingForwardArgs& args) {
  const int64_t d = args.w.dim(1);
  DispatchPieces<T>(d, {args.w, args.y}, [&]<int n>() {
    const Forward<W, T, n> pass{d,
                                args.first_row,
                                args.w.dim(0),
                                args.vocabulary,
                                Data<int32_t>(args.ids),
                                Data<W>(args.w),
                                Data<T>(args.y)};
    ColumnPass<n>(stream, "embedding", args.ids.size(), d, pass);
  });
}

// Tokens in order of their ids, and of their places where ids are equal. A warp counts the tokens
// before one: N² comparisons are little beside what a model does with N tokens.
struct Sorted {
  int32_t *tokens, *ids;
};

__global__ void __launch_bounds__(256) Sort(int64_t count, const int32_t* ids, Sorted to) {
  const int64_t token = int64_t{blockIdx.x} * 8 + threadIdx.x / 32;
  if (token >= count) return;
  const int32_t id = ids[token];
  int before = 0;
  for (int64_t other = threadIdx.x % 32; other < count; other += 32) {
    before += ids[other] < id || (ids[other] == id && other < token);
  }
  before = __reduce_add_sync(~0u, before);
  if (threadIdx.x % 32 == 0) {
    to.tokens[before] = static_cast<int32_t>(token);
    to.ids[before] = id;
  }
}

constexpr int kTeams = 8;  // of 32 threads: each takes every eighth token of an id

// A block takes the tokens of one id, if `blockIdx.x` is the first place of an id, and 32 pieces of
// columns.
template <class T, int n>
__global__ void __launch_bounds__(256)
    AddRows(int64_t count, int64_t d, int64_t first_row, int64_t rows, Sorted sorted,
            const T* dy_ND, float* dw_VD) {
  constexpr int kAtOnce = 4;
  const int64_t first = blockIdx.x;
  const int32_t id = sorted.ids[first];
  const int64_t row_of_w = id - first_row;
  if (row_of_w < 0 || row_of_w >= rows || (first > 0 && sorted.ids[first - 1] == id)) return;
  const int64_t column = (int64_t{blockIdx.y} * 32 + threadIdx.x) * n;
  Piece<n> sum = {};
  bool more = true;
  for (int64_t place = first + threadIdx.y; more; place += kAtOnce * kTeams) {
    Packed<T, n> row[kAtOnce] = {};
    int32_t token[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int64_t at = min(place + j * kTeams, count - 1);
      more = place + j * kTeams < count && sorted.ids[at] == id;
      token[j] = more && column < d ? sorted.tokens[at] : -1;
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      if (token[j] >= 0) row[j] = LoadPacked<n>(dy_ND + token[j] * d + column);
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
#pragma unroll
      for (int i = 0; i < n; ++i) sum[i] += row[j][i];
    }
  }
  __shared__ float of_team[kTeams][32 * n];
#pragma unroll
  for (int i = 0; i < n; ++i) of_team[threadIdx.y][threadIdx.x * n + i] = sum[i];
  __syncthreads();
  for (int c = threadIdx.y * 32 + threadIdx.x; c < 32 * n; c += 256) {
    const int64_t to = int64_t{blockIdx.y} * 32 * n + c;
    if (to >= d) break;
    float total = 0;
#pragma unroll
    for (int team = 0; team < kTeams; ++team) total += of_team[team][c];
    dw_VD[row_of_w * d + to] += total;
  }
}

template <class T>
void RunBackward(const Stream& stream, const EmbeddingBackwardArgs& args) {
  const int64_t count = args.ids.size(), d = args.dw.dim(1);
  if (count == 0) return;
  int32_t* scratch = ScratchFor<int32_t>(stream, 2 * count);
  const Sorted sorted{.tokens = scratch, .ids = scratch + count};
  Sort<<<Blocks(count, 8), 256, 0, Handle(stream)>>>(count, Data<int32_t>(args.ids), sorted);
  CheckLaunch("embedding backward");
  DispatchPieces<T>(d, {args.dy}, [&]<int n>() {
    const dim3 grid(static_cast<unsigned>(count), Blocks(d, 32 * n));
    AddRows<T, n><<<grid, dim3(32, kTeams), 0, Handle(stream)>>>(
        count, d, args.first_row, args.dw.dim(0), sorted, Data<T>(args.dy), Data<float>(args.dw));
  });
  CheckLaunch("embedding backward");
}

}  // namespace

void EmbeddingForward(Stream& stream, const EmbeddingForwardArgs& args) {
  DispatchType("embedding", args.w.dtype(), [&]<class W>() {
    DispatchType("embedding", args.y.dtype(), [&]<class T>() { RunForward<W, T>(stream, args); });
  });
}

void EmbeddingBackward(Stream& stream, const EmbeddingBackwardArgs& args) {
  DispatchType("embedding", args.dy.dtype(), [&]<class T>() { RunBackward<T>(stream, args); });
}

}  // namespace lt2::cuda
