// Normal numbers cut at three standard deviations, from 32-bit words, as fast as they are stored.
//
// The quantile of a word is a polynomial of degree 7 on each of 2048 equal parts of (0, 1/2), and
// odd about 1/2. It is off by less than kOff from what InitialValue computes, and so most often
// says which float that rounds to.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace lt2 {

class CutNormals {
 public:
  static constexpr double kOff = 1e-11;

  // Made once, by interpolation of NormalQuantile.
  static const CutNormals& Get();

  double At(uint32_t word) const {
    const bool upper = word >> 31;
    const uint32_t half = upper ? ~word : word;
    const std::array<double, kTerms>& terms = parts_[half >> kBits];
    // Where in the part, from -1 to 1: exact.
    const double t = ((half & ((1u << kBits) - 1)) + 0.5) * (2.0 / (1u << kBits)) - 1;
    double x = terms[kTerms - 1];
    for (int k = kTerms - 2; k >= 0; --k) x = x * t + terms[k];
    return upper ? -x : x;
  }

 private:
  static constexpr int kParts = 2048, kTerms = 8, kBits = 20;  // kParts << kBits: half of all words
  CutNormals();

  std::vector<std::array<double, kTerms>> parts_;
};

// The quantile of the normal distribution cut at three standard deviations.
double CutNormalQuantile(double u);

}  // namespace lt2
