// Short convolutions of four taps and SiLU, several in one launch, with the L2 norm of each head
// behind them where asked: bfloat16, heads of 64, 96 or 128 channels.
//
// A half warp takes a head, so that norms need shuffles alone, and walks down a band of tokens,
// four at a time. The copy engine brings a warp's rows, four tokens together and eight ahead, and
// takes results from where they were; in registers rows stay as long as a tap reads them, and the
// gradients of rows gather there until the last of their taps has been seen. Both are rings: row t
// is in slot t mod 4.
//
// Taps are held as w/c with c = -ln 2, and so are pre-activations: 2^(u/c) = exp(-u) without a
// product, c σ(u) = 1 / (1/c + exp(-u)/c), silu(u) = (u/c) (c σ(u)). Gradients of
// pre-activations are held as c du: what is added up from products with w/c is then right as it is.
#pragma once

#include "kernels/cuda/behind.cuh"
#include "kernels/cuda/conv_head_walk.cuh"

namespace lt2::cuda {

template <class Lanes, bool kNormed>
struct HeadsForward : HeadWalk<Lanes, 1> {
  using Walk = HeadWalk<Lanes, 1>;
  using Walk::n;
  float eps;

  __device__ HeadsForward(const ConvHeadParts& parts, int p, typename Walk::Slots* slots)
      : Walk(parts, p, slots), eps(parts.eps / 16) {}
  // Four tokens. kPlain: none of them is its document's first, no bit of `starts` is set.
  template <bool kPlain>
  __device__ void Four(bf16* here, unsigned starts) {
#pragma unroll
    for (int j = 0; j < kHeadTaps; ++j) {
      if (!kPlain && (starts >> j & 1) != 0) this->BeginDocument(j);
      this->rows[j] = Walk::Slot(here, 0, j);
      Piece<n> y = this->PreActivation(j);
#pragma unroll
      for (int i = 0; i < n; ++i) y[i] *= Walk::ScaledSigmoid(y[i]);
      if constexpr (kNormed) {
        float squares = eps;
#pragma unroll
        for (int i = 0; i < n; ++i) squares += y[i] * y[i];
        const float rho = FastInverseRoot(HalfWarpSum(squares));
#pragma unroll
        for (int i = 0; i < n; ++i) y[i] *= rho;
      }
      Lanes::Store(here + j * 2 * Walk::kHeadDim, y);
    }
  }
  __device__ void Run() {
    for (int token = this->begin; token < this->end; token += kHeadTaps) {
      bf16* here = this->Await(token, this->end);
      const unsigned starts = this->NearStart(token, 1);
      if (starts == 0) {
        Four<true>(here, 0);
      } else {
        Four<false>(here, starts);
      }
      this->StoreStage(here, token);
    }
    this->FinishStores();
  }
};

template <class Lanes, bool kNormed>
struct HeadsBackward : HeadWalk<Lanes, 2> {
  using Walk = HeadWalk<Lanes, 2>;
  using Walk::n;
  float eps;
  bool accumulate;
  Piece<n> dx[kHeadTaps] = {}, sums[kHeadTaps] = {};

  __device__ HeadsBackward(const ConvHeadParts& parts, int p, typename Walk::Slots* slots)
      : Walk(parts, p, slots), eps(parts.eps / 16), accumulate(parts.part[p].accumulate) {}
  // Four tokens. kPlain: they and the three rows before them are the band's, all are at least three
  // tokens into their documents, and gradients are not added to others.
  template <bool kPlain>
  __device__ void Four(bf16* here, int first) {
#pragma unroll
    for (int j = 0; j < kHeadTaps; ++j) {
      const int token = first + j;
      int position = kHeadBack;
      if constexpr (!kPlain) {  // what is not there reads nothing
        position = __shfl_sync(~0u, this->position_here, j);
        if (token > this->parts.last) position = 0;
        if (position == 0) this->BeginDocument(j);
      }
      this->rows[j] = Walk::Slot(here, 0, j);
      const Piece<n> u = this->PreActivation(j);
      Piece<n> y, du;
#pragma unroll
      for (int i = 0; i < n; ++i) {
        const float s = Walk::ScaledSigmoid(u[i]);
        y[i] = u[i] * s;
        du[i] = s + y[i] * (Walk::kScale - s);
      }
      Piece<n> g = Walk::Slot(here, 1, j);
      if constexpr (kNormed) {  // from the gradient of y ρ to that of y: ρ (g - y ρ² (g · y))
        float squares = eps, along = 0;
#pragma unroll
        for (int i = 0; i < n; ++i) {
          squares += y[i] * y[i];
          along += g[i] * y[i];
        }
        const float2 of_head = HalfWarpSums(squares, along);
        const float rho = FastInverseRoot(of_head.x);
        const float pull = of_head.y * rho * rho * rho;
#pragma unroll
        for (int i = 0; i < n; ++i) g[i] = g[i] * rho - pull * y[i];
      }
#pragma unroll
      for (int i = 0; i < n; ++i) du[i] *= g[i];
      if (kPlain || token < this->end) {
#pragma unroll
        for (int t = 0; t < kHeadTaps; ++t) {
#pragma unroll
          for (int i = 0; i < n; ++i) sums[t][i] += du[i] * this->rows[(j + 1 + t) % kHeadTaps][i];
        }
      }
      // Of the rows before it a token reaches those of its document.
#pragma unroll
      for (int t = 0; t < kHeadBack; ++t) {
        if (!kPlain && position < kHeadBack - t) continue;
#pragma unroll
        for (int i = 0; i < n; ++i) dx[(j + 1 + t) % kHeadTaps][i] += this->w[t][i] * du[i];
      }
      if constexpr (kPlain) {
        Lanes::Store(here + j * 2 * Walk::kHeadDim, dx[(j + 1) % kHeadTaps]);
      } else {
        StoreRow(token - kHeadBack, dx[(j + 1) % kHeadTaps]);
      }
#pragma unroll
      for (int i = 0; i < n; ++i) dx[j][i] = this->w[kHeadBack][i] * du[i];
    }
    if constexpr (kPlain) this->StoreStage(here, first - kHeadBack);
  }
  // A complete row, if it is the band's.
  __device__ void StoreRow(int row, Piece<n>& values) const {
    if (!this->wanted || row < this->begin || row >= this->end) return;
    bf16* to = this->RowOf(this->parts.part[this->p].dx_NC + this->channel, row);
    if (accumulate) {
      const Piece<n> there = Lanes::Load(to);
#pragma unroll
      for (int i = 0; i < n; ++i) values[i] += there[i];
    }
    Lanes::Store(to, values);
  }
  // The three tokens after the band that read its rows are computed here again.
  __device__ void Run() {
    const int all = this->end + kHeadBack;
    for (int token = this->begin; token < all; token += kHeadTaps) {
      bf16* here = this->Await(token, all);
      const bool within = token > this->begin && token + kHeadTaps <= this->end;
      if (this->NearStart(token, kHeadBack) == 0 && within && !accumulate) {
        Four<true>(here, token);
      } else {
        Four<false>(here, token);
      }
    }
    this->FinishStores();
    if (!this->active) return;
    float4* to = this->parts.partial + this->parts.bands[this->p].first_sum +
                 int64_t{this->band} * this->channels + this->channel;
#pragma unroll
    for (int i = 0; i < n; ++i) {
      to[Lanes::Offset(i)] = make_float4(sums[0][i] * Walk::kInverse, sums[1][i] * Walk::kInverse,
                                         sums[2][i] * Walk::kInverse, sums[3][i] * Walk::kInverse);
    }
  }
};

// Blocks that share a processor: as many as registers allow. The forward's bands are shorter, as
// blocks that follow each other leave less idle at the end; the backward's start with slower rows.
template <class Lanes>
inline constexpr int kForwardTogether = Lanes::n > 6 ? 9 : 12;
inline constexpr int kForwardWaves = 3, kBackwardTogether = 6;

template <class Lanes>
__global__ void __launch_bounds__(32 * kHeadWarps, kForwardTogether<Lanes>)
    ConvHeadsForward(const __grid_constant__ ConvHeadParts parts) {
  __shared__ typename HeadWalk<Lanes, 1>::Slots slots[kHeadWarps];
  const int p = parts.PartOfBlock();
  if (parts.part[p].head_dim > 0) {
    HeadsForward<Lanes, true>(parts, p, slots).Run();
  } else {
    HeadsForward<Lanes, false>(parts, p, slots).Run();
  }
}

template <class Lanes>
__global__ void __launch_bounds__(32 * kHeadWarps, kBackwardTogether)
    ConvHeadsBackward(const __grid_constant__ ConvHeadParts parts) {
  AdmitKernelBehind();
  __shared__ typename HeadWalk<Lanes, 2>::Slots slots[kHeadWarps];
  const int p = parts.PartOfBlock();
  if (parts.part[p].head_dim > 0) {
    HeadsBackward<Lanes, true>(parts, p, slots).Run();
  } else {
    HeadsBackward<Lanes, false>(parts, p, slots).Run();
  }
}

// dw of all columns: the sums of their bands. Blocks of 32 columns by kConvHigh.
inline constexpr int kConvHigh = 8;
template <class = void>
__global__ void __launch_bounds__(32 * kConvHigh)
    FinishConvSums(const __grid_constant__ ConvHeadParts parts) {
  AwaitKernelBefore();
  __shared__ float4 of_lane[kConvHigh][32];
  const int64_t column = int64_t{blockIdx.x} * 32 + threadIdx.x;
  float4 sum = {};
  const auto add = [&sum](const float4& x) {
    sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w;
  };
  int p = 0;
  while (p + 1 < kConvParts && column >= parts.part[p + 1].first_column) ++p;
  const int64_t channel = column - parts.part[p].first_column;
  if (column < parts.columns) {
    const float4* from = parts.partial + parts.bands[p].first_sum + channel;
#pragma unroll 8
    for (int b = threadIdx.y; b < parts.bands[p].count; b += kConvHigh) {
      add(from[b * parts.part[p].in.channels]);
    }
  }
  of_lane[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= parts.columns) return;
#pragma unroll
  for (int y = 1; y < kConvHigh; ++y) add(of_lane[y][threadIdx.x]);
  if (parts.part[p].dw_CW == nullptr) return;
  float4* to = reinterpret_cast<float4*>(parts.part[p].dw_CW) + channel;
  add(*to);
  *to = sum;
}

// All of a processor's blocks must find their place in shared memory.
template <class Kernel>
void PreferShared(Kernel* kernel) {
  LT2_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                      cudaSharedmemCarveoutMaxShared));
}

template <class Lanes>
void RunConvHeadsForward(const Stream& stream, const char* name, ConvHeadParts parts) {
  parts.LayOut(int64_t{132} * kForwardTogether<Lanes> * kForwardWaves, 0, 1);
  PreferShared(ConvHeadsForward<Lanes>);
  ConvHeadsForward<Lanes><<<parts.blocks, 32 * kHeadWarps, 0, Handle(stream)>>>(parts);
  CheckLaunch(name);
}

// Gives `parts` their workspace.
template <class Lanes>
void RunConvHeadsBackward(const Stream& stream, const char* name, ConvHeadParts parts) {
  parts.LayOut(int64_t{132} * kBackwardTogether, kHeadBack, 1.25);  // measured
  parts.partial = ScratchFor<float4>(stream, parts.sums);
  PreferShared(ConvHeadsBackward<Lanes>);
  ConvHeadsBackward<Lanes><<<parts.blocks, 32 * kHeadWarps, 0, Handle(stream)>>>(parts);
  CheckLaunch(name);
  LaunchBehind(stream, name, FinishConvSums<>, Blocks(parts.columns, 32), dim3(32, kConvHigh),
               parts);
}

}  // namespace lt2::cuda
