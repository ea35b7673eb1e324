#include "checkpoints/float_values.h"

#include <cstring>

#include "core/check.h"

namespace lt2 {
namespace {

// IEEE's half precision, read only: lt2 writes none.
struct Float16 {
  uint16_t bits;

  operator float() const {
    const uint32_t sign = (bits & 0x8000u) << 16, exponent = bits & 0x7c00u;
    const uint32_t fraction = bits & 0x3ffu;
    if (exponent == 0) {  // fraction · 2⁻²⁴
      const float value = static_cast<float>(fraction) * 0x1p-24f;
      return sign == 0 ? value : -value;
    }
    constexpr uint32_t kBias = (127 - 15) << 23, kInfinity = 0x7f800000u;
    const uint32_t high = exponent == 0x7c00u ? kInfinity : (exponent << 13) + kBias;
    return std::bit_cast<float>(sign | high | fraction << 13);
  }
};

template <class Fn>
void Dispatch(FloatType type, Fn&& fn) {
  switch (type) {
    case FloatType::kF64:
      return fn.template operator()<double>();
    case FloatType::kF32:
      return fn.template operator()<float>();
    case FloatType::kBF16:
      return fn.template operator()<BFloat16>();
    case FloatType::kF16:
      return fn.template operator()<Float16>();
  }
}

template <class To, class From>
To Converted(From value) {
  if constexpr (std::is_same_v<To, BFloat16>) {
    return BFloat16::Of(static_cast<float>(value));
  } else if constexpr (std::is_same_v<To, Float16>) {
    CHECK(false) << "nothing is written in F16";
    return {};
  } else {
    return static_cast<To>(value);
  }
}

}  // namespace

int64_t SizeOf(FloatType type) {
  return type == FloatType::kF64 ? 8 : type == FloatType::kF32 ? 4 : 2;
}

const char* Name(FloatType type) {
  constexpr const char* kNames[] = {"F64", "F32", "BF16", "F16"};
  return kNames[static_cast<int>(type)];
}

std::optional<FloatType> FloatTypeOf(std::string_view name) {
  for (const FloatType type :
       {FloatType::kF64, FloatType::kF32, FloatType::kBF16, FloatType::kF16}) {
    if (name == Name(type)) return type;
  }
  return std::nullopt;
}

FloatType FloatTypeOf(DType dtype) {
  if (dtype == DType::kF64) return FloatType::kF64;
  if (dtype == DType::kF32) return FloatType::kF32;
  CHECK(dtype == DType::kBF16) << dtype;
  return FloatType::kBF16;
}

DType HeldAs(FloatType type) { return type == FloatType::kF64 ? DType::kF64 : DType::kF32; }

void ConvertFloats(FloatType from_type, std::span<const std::byte> from, FloatType to_type,
                   std::span<std::byte> to) {
  const int64_t values = static_cast<int64_t>(from.size()) / SizeOf(from_type);
  CHECK_EQ(static_cast<int64_t>(to.size()), values * SizeOf(to_type));
  if (values == 0) return;
  if (from_type == to_type) {
    std::memcpy(to.data(), from.data(), from.size());
    return;
  }
  Dispatch(from_type, [&]<class From>() {
    Dispatch(to_type, [&]<class To>() {
      for (int64_t i = 0; i < values; ++i) {
        From value;
        std::memcpy(&value, from.data() + i * sizeof(From), sizeof(From));
        const To converted = Converted<To>(value);
        std::memcpy(to.data() + i * sizeof(To), &converted, sizeof(To));
      }
    });
  });
}

}  // namespace lt2
