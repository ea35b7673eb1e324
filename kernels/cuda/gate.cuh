// The activations of gates with their slopes. T: what the values around them are kept in.
#pragma once

#include "kernels/cuda/piece.cuh"
#include "kernels/gated_product.h"

namespace lt2::cuda {

template <class T>
struct Swish {
  static __device__ float Value(float z) { return z * SigmoidOf<T>(z); }
  static __device__ void ValueAndSlope(float z, float& value, float& slope) {
    const float s = SigmoidOf<T>(z);
    value = z * s;
    slope = s + value * (1 - s);
  }
};

template <class T>
struct Logistic {
  static __device__ float Value(float z) { return SigmoidOf<T>(z); }
  static __device__ void ValueAndSlope(float z, float& value, float& slope) {
    value = SigmoidOf<T>(z);
    slope = value * (1 - value);
  }
};

struct PlainFactor {
  static __device__ float Value(float z) { return z; }
  static __device__ void ValueAndSlope(float z, float& value, float& slope) {
    value = z;
    slope = 1;
  }
};

// fn.operator()<Gate>() with the type that kind stands for.
template <class T, class Fn>
void DispatchGate(GateKind kind, const Fn& fn) {
  if (kind == GateKind::kSwish) return fn.template operator()<Swish<T>>();
  if (kind == GateKind::kSigmoid) return fn.template operator()<Logistic<T>>();
  fn.template operator()<PlainFactor>();
}

}  // namespace lt2::cuda
