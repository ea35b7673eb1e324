#include "checkpoints/float_values.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "core/philox.h"

namespace lt2 {
namespace {

template <class To, class From>
std::vector<To> Convert(const std::vector<From>& from, FloatType from_type, FloatType to_type) {
  std::vector<To> to(from.size());
  ConvertFloats(from_type, std::as_bytes(std::span(from)), to_type,
                std::as_writable_bytes(std::span(to)));
  return to;
}

// By the definition: 5 bits of exponent, 10 of fraction.
double HalfByDefinition(uint16_t bits) {
  const int exponent = (bits >> 10) & 31, fraction = bits & 1023;
  double value =
      exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  if (exponent == 31) value = fraction == 0 ? INFINITY : NAN;
  return bits >> 15 ? -value : value;
}

TEST(FloatValues, EveryHalfIsReadExactly) {
  std::vector<uint16_t> halves;
  for (int bits = 0; bits < 1 << 16; ++bits) halves.push_back(static_cast<uint16_t>(bits));
  const auto floats = Convert<float>(halves, FloatType::kF16, FloatType::kF32);
  const auto doubles = Convert<double>(halves, FloatType::kF16, FloatType::kF64);
  for (const uint16_t bits : halves) {
    const double expected = HalfByDefinition(bits);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(floats[bits]) && std::isnan(doubles[bits])) << bits;
      continue;
    }
    ASSERT_EQ(floats[bits], expected) << bits;
    ASSERT_EQ(doubles[bits], expected) << bits;
    ASSERT_EQ(std::signbit(floats[bits]), std::signbit(expected)) << bits;
  }
}

TEST(FloatValues, OneTypeKeepsEveryBitAndAWiderOneComesBack) {
  constexpr uint64_t kSeed = 3;
  std::vector<uint32_t> floats;
  for (int i = 0; i < 10000; ++i) floats.push_back(Philox(kSeed, i)[0]);  // NaNs among them
  EXPECT_EQ(Convert<uint32_t>(floats, FloatType::kF32, FloatType::kF32), floats);
  std::vector<uint16_t> brains;
  for (int bits = 0; bits < 1 << 16; ++bits) brains.push_back(static_cast<uint16_t>(bits));
  const auto widened = Convert<float>(brains, FloatType::kBF16, FloatType::kF32);
  const auto back = Convert<uint16_t>(widened, FloatType::kF32, FloatType::kBF16);
  for (const uint16_t bits : brains) {
    if (std::isnan(widened[bits])) continue;
    ASSERT_EQ(back[bits], bits);
  }
}

TEST(FloatValues, RoundsToNearestAndTiesToEven) {
  const std::vector<float> values = {1.0f,          1.0f + 0x1p-8f,  1.0f + 0x3p-8f,
                                     1 + 0x1.1p-8f, -1.0f - 0x1p-7f, INFINITY};
  const std::vector<uint16_t> expected = {0x3f80, 0x3f80, 0x3f82, 0x3f81, 0xbf81, 0x7f80};
  EXPECT_EQ(Convert<uint16_t>(values, FloatType::kF32, FloatType::kBF16), expected);
}

TEST(FloatValues, NamesAreThoseOfTheFormat) {
  for (const FloatType type :
       {FloatType::kF64, FloatType::kF32, FloatType::kBF16, FloatType::kF16}) {
    EXPECT_EQ(FloatTypeOf(Name(type)), type);
  }
  EXPECT_EQ(FloatTypeOf("I32"), std::nullopt);
}

}  // namespace
}  // namespace lt2
