#include "kernels/cut_normals.h"

#include <cmath>
#include <numbers>

#include "kernels/init.h"

namespace lt2 {
namespace {

constexpr double kCut = 3;  // standard deviations

// The coefficients of 1, t, t² … of the polynomial through f at Chebyshev's points of [-1, 1].
template <size_t n, class Fn>
std::array<double, n> Interpolate(const Fn& f) {
  std::array<double, n> values, chebyshev;
  for (size_t i = 0; i < n; ++i) values[i] = f(std::cos(std::numbers::pi * (i + 0.5) / n));
  for (size_t k = 0; k < n; ++k) {
    chebyshev[k] = 0;
    for (size_t i = 0; i < n; ++i) {
      chebyshev[k] += values[i] * std::cos(std::numbers::pi * k * (i + 0.5) / n) * 2 / n;
    }
  }
  chebyshev[0] /= 2;
  // T_0 = 1, T_1 = t, T_{k+1} = 2 t T_k - T_{k-1}.
  std::array<double, n> terms = {}, before = {}, of_k = {};
  of_k[0] = 1;
  for (size_t k = 0; k < n; ++k) {
    for (size_t j = 0; j < n; ++j) terms[j] += chebyshev[k] * of_k[j];
    std::array<double, n> next;
    for (size_t j = 0; j < n; ++j) {
      next[j] = (k == 0 ? 1 : 2) * (j > 0 ? of_k[j - 1] : 0) - before[j];
    }
    before = of_k;
    of_k = next;
  }
  return terms;
}

}  // namespace

double CutNormalQuantile(double u) {
  static const double kBelow = std::erfc(kCut / std::numbers::sqrt2) / 2;
  return NormalQuantile(kBelow + u * (1 - 2 * kBelow));
}

CutNormals::CutNormals() : parts_(kParts) {
  for (int part = 0; part < kParts; ++part) {
    parts_[part] = Interpolate<kTerms>(
        [&](double t) { return CutNormalQuantile((part + (1 + t) / 2) / (2.0 * kParts)); });
  }
}

const CutNormals& CutNormals::Get() {
  static const CutNormals table;
  return table;
}

}  // namespace lt2
