// The taps of the short convolution: which rows a token reads, and their weighted sum.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/tensor.h"
#include "kernels/cpu/scratch.h"
#include "kernels/documents.h"

namespace lt2::cpu {

// Weights by tap, so that channels are contiguous; a row of zeros; the bias or zeros.
template <class T>
struct ConvTaps {
  int64_t width, channels;
  T* w;  // [width, channels]
  T* zero;
  const T* bias;

  ConvTaps(const Tensor& w_CW, const Tensor& bias_C, Scratch& scratch)
      : width(w_CW.dim(1)),
        channels(w_CW.dim(0)),
        w(scratch.Take<T>(width * channels)),
        zero(scratch.Take<T>(channels)) {
    const T* from = w_CW.data<T>();
    for (int64_t c = 0; c < channels; ++c) {
      for (int64_t i = 0; i < width; ++i) w[i * channels + c] = from[c * width + i];
    }
    std::fill(zero, zero + channels, T(0));
    bias = bias_C.defined() ? bias_C.data<T>() : zero;
  }

  // to = base + sum_i w_i rows[i]; to may be base.
  void Sum(const T* base, const T* const* rows, T* to) const {
    if (width == 4) {
      const T *r0 = rows[0], *r1 = rows[1], *r2 = rows[2], *r3 = rows[3];
      const T *w0 = w, *w1 = w + channels, *w2 = w1 + channels, *w3 = w2 + channels;
#pragma omp simd
      for (int64_t c = 0; c < channels; ++c) {
        to[c] = base[c] + w0[c] * r0[c] + w1[c] * r1[c] + w2[c] * r2[c] + w3[c] * r3[c];
      }
      return;
    }
    if (to != base) std::copy(base, base + channels, to);
    for (int64_t i = 0; i < width; ++i) {
      const T *r = rows[i], *w_i = w + i * channels;
#pragma omp simd
      for (int64_t c = 0; c < channels; ++c) to[c] += w_i[c] * r[c];
    }
  }

  // sums [width + 1, channels]: the gradients of each tap, then of the bias.
  void AddGradients(const T* const* rows, const T* du, T* sums) const {
    if (width == 4) {
      const T *r0 = rows[0], *r1 = rows[1], *r2 = rows[2], *r3 = rows[3];
      T *s0 = sums, *s1 = s0 + channels, *s2 = s1 + channels, *s3 = s2 + channels;
      T* s4 = s3 + channels;
#pragma omp simd
      for (int64_t c = 0; c < channels; ++c) {
        s0[c] += du[c] * r0[c];
        s1[c] += du[c] * r1[c];
        s2[c] += du[c] * r2[c];
        s3[c] += du[c] * r3[c];
        s4[c] += du[c];
      }
      return;
    }
    for (int64_t i = 0; i < width; ++i, sums += channels) {
      const T* r = rows[i];
#pragma omp simd
      for (int64_t c = 0; c < channels; ++c) sums[c] += du[c] * r[c];
    }
#pragma omp simd
    for (int64_t c = 0; c < channels; ++c) sums[c] += du[c];
  }
};

// The rows of one document's input, its tail included.
template <class T>
struct ConvRows {
  const T* first;  // row 0
  const T* tail;   // row -before; null: zeros
  int64_t before, channels;
  const T* zero;

  ConvRows(const Tensor& x, const Tensor& tail_DPC, int64_t document, int64_t begin, int64_t before,
           const T* zero)
      : first(x.data<T>() + begin * x.dim(1)),
        tail(tail_DPC.defined() ? tail_DPC.data<T>() + document * before * x.dim(1) : nullptr),
        before(before),
        channels(x.dim(1)),
        zero(zero) {}

  const T* Row(int64_t position) const {
    if (position >= 0) return first + position * channels;
    return tail == nullptr ? zero : tail + (before + position) * channels;
  }
  // rows[i] = row position - before + i, for before + 1 taps.
  void Window(int64_t position, const T** rows) const {
    for (int64_t i = 0; i <= before; ++i) rows[i] = Row(position - before + i);
  }
};

inline constexpr int64_t kMostTaps = 16;

}  // namespace lt2::cpu
