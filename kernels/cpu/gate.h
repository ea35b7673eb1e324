// The activations of gates with their slopes, for loops that vectorise.
#pragma once

#include "kernels/cpu/simd.h"
#include "kernels/gated_product.h"

namespace lt2::cpu {

struct Swish {
  template <class T>
  static T Value(T z) {
    return Silu(z);
  }
  template <class T>
  static void ValueAndSlope(T z, T& value, T& slope) {
    const T s = Sigmoid(z);
    value = z * s;
    slope = s + value * (T(1) - s);
  }
};

struct Logistic {
  template <class T>
  static T Value(T z) {
    return Sigmoid(z);
  }
  template <class T>
  static void ValueAndSlope(T z, T& value, T& slope) {
    value = Sigmoid(z);
    slope = value * (T(1) - value);
  }
};

struct PlainFactor {
  template <class T>
  static T Value(T z) {
    return z;
  }
  template <class T>
  static void ValueAndSlope(T z, T& value, T& slope) {
    value = z;
    slope = 1;
  }
};

// fn.operator()<Gate>() with the type that kind stands for.
template <class Fn>
void DispatchGate(GateKind kind, const Fn& fn) {
  if (kind == GateKind::kSwish) return fn.template operator()<Swish>();
  if (kind == GateKind::kSigmoid) return fn.template operator()<Logistic>();
  fn.template operator()<PlainFactor>();
}

}  // namespace lt2::cpu
