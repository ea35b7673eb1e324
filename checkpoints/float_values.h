// Numbers as files store them, from one floating-point type to another.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "core/dtype.h"

namespace lt2 {

enum class FloatType : uint8_t { kF64, kF32, kBF16, kF16 };

constexpr bool IsFloat(DType dtype) {
  return dtype == DType::kF64 || dtype == DType::kF32 || dtype == DType::kBF16;
}
int64_t SizeOf(FloatType type);
const char* Name(FloatType type);                             // as safetensors has it: "BF16"
std::optional<FloatType> FloatTypeOf(std::string_view name);  // none: of other things
FloatType FloatTypeOf(DType dtype);                           // IsFloat(dtype)
// What values of this type are kept as here without losing a bit.
DType HeldAs(FloatType type);

// As many values as `from` has; neither need be aligned. To nearest, ties to even; exact into wider
// types, and bit for bit where the types are one (a NaN's too).
void ConvertFloats(FloatType from_type, std::span<const std::byte> from, FloatType to_type,
                   std::span<std::byte> to);

}  // namespace lt2
