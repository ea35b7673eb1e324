// Element types, and the one place that turns a run-time dtype into a compile-time type.
#pragma once

#include <bit>
#include <cstdint>
#include <ostream>

#include "core/check.h"

namespace lt2 {

enum class DType : uint8_t { kF64, kF32, kBF16, kI32, kU8 };

constexpr int64_t SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return 8;
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBF16:
      return 2;
    case DType::kU8:
      return 1;
  }
  return 0;
}

constexpr const char* Name(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return "f64";
    case DType::kF32:
      return "f32";
    case DType::kBF16:
      return "bf16";
    case DType::kI32:
      return "i32";
    case DType::kU8:
      return "u8";
  }
  return "?";
}

inline std::ostream& operator<<(std::ostream& os, DType dtype) { return os << Name(dtype); }

// The upper half of a float: storage only, arithmetic is float's.
struct BFloat16 {
  uint16_t bits;

  static BFloat16 Of(float x) {
    auto bits = std::bit_cast<uint32_t>(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return {0x7fff};  // NaN stays NaN
    bits += 0x7fffu + ((bits >> 16) & 1u);                    // to nearest, ties to even
    return {static_cast<uint16_t>(bits >> 16)};
  }
  operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
};

template <class T>
constexpr DType kDTypeOf = DType::kU8;
template <>
inline constexpr DType kDTypeOf<double> = DType::kF64;
template <>
inline constexpr DType kDTypeOf<float> = DType::kF32;
template <>
inline constexpr DType kDTypeOf<int32_t> = DType::kI32;
template <>
inline constexpr DType kDTypeOf<BFloat16> = DType::kBF16;

// What sums, statistics, gates, decays and states of values of this type are kept in.
constexpr DType AccumulatorOf(DType dtype) { return dtype == DType::kBF16 ? DType::kF32 : dtype; }

// Calls fn.template operator()<T>() with T = float or double: what a CPU kernel is compiled for.
//   DispatchFloat(x.dtype(), [&]<class T>() { Run<T>(args); });
template <class Fn>
void DispatchFloat(DType dtype, Fn&& fn) {
  switch (dtype) {
    case DType::kF32:
      return fn.template operator()<float>();
    case DType::kF64:
      return fn.template operator()<double>();
    default:
      CHECK(false) << "no CPU kernel for dtype " << dtype;
  }
}

}  // namespace lt2
