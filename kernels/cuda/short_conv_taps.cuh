// What the short convolution reads: input rows of a token's document, at and before the token.
#pragma once

#include "kernels/cuda/piece.cuh"
#include "kernels/short_conv.h"

namespace lt2::cuda {

template <class T>
struct ConvInput {
  int64_t tokens, channels, width;
  const T* x_NC;
  const float *w_CW, *bias_C;  // no bias: null
  const T* tail_DPC;           // null: zeros
  bool silu;
  const int32_t *positions_N, *cu_seqlens;
  int64_t documents;

  // Args: of the forward or of the backward pass.
  template <class Args>
  static ConvInput Of(const Args& a) {
    return {.tokens = a.x_NC.dim(0),
            .channels = a.x_NC.dim(1),
            .width = a.w_CW.dim(1),
            .x_NC = Data<T>(a.x_NC),
            .w_CW = Data<float>(a.w_CW),
            .bias_C = DataOrNull<float>(a.bias_C),
            .tail_DPC = DataOrNull<T>(a.tail_DPC),
            .silu = a.silu,
            .positions_N = Data<int32_t>(a.documents.positions()),
            .cu_seqlens = Data<int32_t>(a.documents.cu_seqlens()),
            .documents = a.documents.capacity()};
  }

  // The document that begins at `token`.
  __device__ int64_t DocumentAt(int64_t token) const {
    int64_t low = 0, high = documents - 1;
    while (low < high) {
      const int64_t middle = (low + high + 1) / 2;
      if (cu_seqlens[middle] <= token) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    return low;
  }

  // Row `token` - `back` of the document in which `token` has `position`; back < width.
  template <int n>
  __device__ Piece<n> Row(int64_t token, int64_t position, int back, int64_t channel) const {
    if (position >= back) return Load<n>(x_NC + (token - back) * channels + channel);
    if (tail_DPC == nullptr) return {};
    const int64_t before = width - 1, document = DocumentAt(token - position);
    return Load<n>(tail_DPC + (document * before + before + position - back) * channels + channel);
  }
  template <int n>
  __device__ Piece<n> Bias(int64_t channel) const {
    return bias_C == nullptr ? Piece<n>{} : Load<n>(bias_C + channel);
  }

  __device__ float Activated(float u) const { return silu ? u * SigmoidOf<T>(u) : u; }
  __device__ float Slope(float u) const {
    if (!silu) return 1;
    const float s = SigmoidOf<T>(u);
    return s * (1 + u * (1 - s));
  }
};

}  // namespace lt2::cuda
