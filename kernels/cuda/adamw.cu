#include "kernels/adamw.h"
#include "kernels/cuda/piece.cuh"
#include "kernels/cuda/pieces_table.cuh"

namespace lt2::cuda {
namespace {

constexpr int kMost = 448;
constexpr int64_t kChunkElements = 4096;
constexpr int kMostBlocks = 528;  // what an H200 holds at once

// Some elements in a row of everything that the step reads and writes.
struct Range {
  float *param, *m, *v;
  const float* grad;
  bf16* value;  // or null
  int64_t size;
  bool decay, wide;  // wide: all are aligned
};
using Table = PiecesTable<Range, kMost>;

struct Settings {
  const double* hyper;
  double beta1, beta2, eps, weight_decay;
};

struct Constants {
  float grad_scale, beta1, new1, beta2, new2, keep, step_size, v_scale, eps;
};

// Made in double and rounded once.
__device__ inline Constants ConstantsOf(const Settings& s) {
  const double lr = s.hyper[kLearningRate], step = s.hyper[kStep];
  return {.grad_scale = static_cast<float>(s.hyper[kGradScale]),
          .beta1 = static_cast<float>(s.beta1),
          .new1 = static_cast<float>(1 - s.beta1),
          .beta2 = static_cast<float>(s.beta2),
          .new2 = static_cast<float>(1 - s.beta2),
          .keep = static_cast<float>(1 - lr * s.weight_decay),
          .step_size = static_cast<float>(lr / (1 - pow(s.beta1, step))),
          .v_scale = static_cast<float>(1 / (1 - pow(s.beta2, step))),
          .eps = static_cast<float>(s.eps)};
}

// Every multiplication that is joined with an addition is written so: the same bits in runs of four
// and one by one.
template <int n>
__device__ inline void UpdateElements(const Constants& c, const Range& range, int64_t i) {
  const Piece<n> grad = Load<n>(range.grad + i);
  Piece<n> m = Load<n>(range.m + i), v = Load<n>(range.v + i), param = Load<n>(range.param + i);
  const float keep = range.decay ? c.keep : 1;
#pragma unroll
  for (int e = 0; e < n; ++e) {
    const float g = __fmul_rn(c.grad_scale, grad[e]);
    m[e] = __fmaf_rn(c.beta1, m[e], __fmul_rn(c.new1, g));
    v[e] = __fmaf_rn(c.beta2, v[e], __fmul_rn(c.new2, __fmul_rn(g, g)));
    const float root = __fadd_rn(__fsqrt_rn(__fmul_rn(c.v_scale, v[e])), c.eps);
    param[e] = __fmaf_rn(keep, param[e], -__fdiv_rn(__fmul_rn(c.step_size, m[e]), root));
  }
  Store<n>(range.m + i, m);
  Store<n>(range.v + i, v);
  Store<n>(range.param + i, param);
  if (range.value != nullptr) Store<n>(range.value + i, param);
}

__global__ void __launch_bounds__(256)
    UpdateKernel(const __grid_constant__ Table table, const Settings settings) {
  if (settings.hyper[kSkip] != 0) return;
  __shared__ Constants of_block;
  if (threadIdx.x == 0) of_block = ConstantsOf(settings);
  __syncthreads();
  const Constants c = of_block;
  const int chunks = table.first_chunk[table.count];
  for (int chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
    const int entry = table.Find(chunk);
    const Range& range = table.entries[entry];
    const int64_t begin = (chunk - table.first_chunk[entry]) * kChunkElements;
    const int64_t end = min(range.size, begin + kChunkElements);
    for (int64_t i = begin + 4 * threadIdx.x; i < end; i += 4 * 256) {
      if (range.wide && i + 4 <= end) {
        UpdateElements<4>(c, range, i);
      } else {
        for (int64_t j = i; j < min(i + 4, end); ++j) UpdateElements<1>(c, range, j);
      }
    }
  }
}

Range RangeOf(const AdamWPiece& piece) {
  const int64_t size = piece.param.size();
  CHECK(piece.grad.size() == size && piece.m.size() == size && piece.v.size() == size);
  CHECK(!piece.value.defined() || piece.value.size() == size);
  Range range{.param = Data<float>(piece.param),
              .m = Data<float>(piece.m),
              .v = Data<float>(piece.v),
              .grad = Data<float>(piece.grad),
              .value = DataOrNull<bf16>(piece.value),
              .size = size,
              .decay = piece.decay,
              .wide = true};
  for (const void* at : {(const void*)range.param, (const void*)range.m, (const void*)range.v,
                         (const void*)range.grad}) {
    range.wide = range.wide && reinterpret_cast<uintptr_t>(at) % 16 == 0;
  }
  range.wide = range.wide && reinterpret_cast<uintptr_t>(range.value) % 8 == 0;
  return range;
}

}  // namespace

void AdamW(Stream& stream, const AdamWArgs& args) {
  const Settings settings{.hyper = Data<double>(args.hyper),
                          .beta1 = args.beta1,
                          .beta2 = args.beta2,
                          .eps = args.eps,
                          .weight_decay = args.weight_decay};
  ForEachTable<Range, kMost>(
      static_cast<int64_t>(args.pieces.size()), kChunkElements,
      [&](int64_t i) { return RangeOf(args.pieces[i]); },
      [&](int64_t i) { return args.pieces[i].param.size(); },
      [&](const Table& table, int64_t) {
        const int blocks = std::min(table.first_chunk[table.count], kMostBlocks);
        if (blocks == 0) return;
        UpdateKernel<<<blocks, 256, 0, Handle(stream)>>>(table, settings);
        CheckLaunch("adamw");
      });
}

}  // namespace lt2::cuda
