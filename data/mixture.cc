#include "data/mixture.h"

#include <cmath>

#include "core/check.h"

namespace lt2 {
namespace {

constexpr int kBits = 62;

// floor(n · share).
int64_t Part(int64_t n, int64_t share) {
  return static_cast<int64_t>(static_cast<__int128>(n) * share >> kBits);
}

}  // namespace

Mixture::Mixture(std::span<const double> weights) {
  CHECK(!weights.empty());
  shares_.resize(weights.size());
  double rest = 0;
  for (size_t s = weights.size(); s-- > 0;) {
    CHECK(std::isfinite(weights[s]) && weights[s] > 0) << "weight " << weights[s];
    rest += weights[s];
    shares_[s] = static_cast<int64_t>(std::llround(std::ldexp(weights[s] / rest, kBits)));
  }
}

Mixture::Choice Mixture::operator()(int64_t sample) const {
  CHECK_GE(sample, 0);
  int64_t i = sample;
  for (size_t s = 0; s + 1 < shares_.size(); ++s) {
    const int64_t before = Part(i, shares_[s]);
    if (Part(i + 1, shares_[s]) > before) return {.source = static_cast<int>(s), .index = before};
    i -= before;
  }
  return {.source = static_cast<int>(shares_.size()) - 1, .index = i};
}

int64_t Mixture::Count(int source, int64_t samples) const {
  CHECK(source >= 0 && source < static_cast<int>(shares_.size())) << source;
  int64_t left = samples;
  for (int s = 0; s < source; ++s) left -= Part(left, shares_[s]);
  return source + 1 == static_cast<int>(shares_.size()) ? left : Part(left, shares_[source]);
}

}  // namespace lt2
