#include "kernels/state_fold.h"

#include <cmath>
#include <vector>

namespace lt2::reference {
namespace {

// Element (row, column) of M, of one part and head.
double MapAt(const StateFoldArgs& a, int64_t part, int64_t head, int64_t row, int64_t column) {
  const int64_t k = a.out_1GKV.dim(2);
  const double* maps = a.maps_RX.data<double>() + part * a.maps_RX.dim(1);
  if (a.map == StateMap::kMatrix) return maps[(head * k + row) * k + column];
  if (row != column) return 0;
  return a.map == StateMap::kRows ? maps[head * k + row] : maps[head];
}

}  // namespace

void StateFold(Stream&, const StateFoldArgs& a) {
  const int64_t parts = a.links_R.dim(0), heads = a.out_1GKV.dim(1);
  const int64_t K = a.out_1GKV.dim(2), V = a.out_1GKV.dim(3);
  const int32_t* links = a.links_R.data<int32_t>();
  for (int64_t h = 0; h < heads; ++h) {
    std::vector<double> s(K * V, 0.0);
    const int64_t steps = a.reverse ? parts - 1 - a.part : a.part;
    for (int64_t i = 0; i < steps; ++i) {
      const int64_t r = a.reverse ? parts - 1 - i : i;
      const double* own = a.states_RX.data<double>() + r * a.states_RX.dim(1) + h * K * V;
      std::vector<double> next(own, own + K * V);
      for (int64_t row = 0; row < K && (links[r] & kSpans) != 0; ++row) {
        for (int64_t d = 0; d < K; ++d) {
          const double m = a.reverse ? MapAt(a, r, h, d, row) : MapAt(a, r, h, row, d);
          for (int64_t j = 0; j < V; ++j) next[row * V + j] += m * s[d * V + j];
        }
      }
      const bool continues = (links[a.reverse ? r : r + 1] & kContinues) != 0;
      for (int64_t j = 0; j < K * V; ++j) s[j] = continues ? next[j] : 0;
    }
    double* out = a.out_1GKV.data<double>() + h * K * V;
    for (int64_t j = 0; j < K * V; ++j) {
      const bool framed = a.to_max_1G.defined() && s[j] != 0;
      const double frame =
          framed ? std::exp(a.to_max_1G.data<double>()[h] - a.from_max_1G.data<double>()[h]) : 1;
      out[j] = frame * s[j];
    }
  }
}

void StateFoldMax(Stream&, const StateFoldMaxArgs& a) {
  const int64_t parts = a.links_R.dim(0), heads = a.out_1GKV.dim(1);
  const int64_t size = a.out_1GKV.dim(2) * a.out_1GKV.dim(3);
  const int32_t* links = a.links_R.data<int32_t>();
  for (int64_t h = 0; h < heads; ++h) {
    std::vector<double> s(size, 0.0);
    double m = 0;
    for (int64_t r = 0; r < parts; ++r) {
      if (r == a.part) {
        std::copy(s.begin(), s.end(), a.out_1GKV.data<double>() + h * size);
        a.out_max_1G.data<double>()[h] = m;
      }
      const double* row = a.parts_RX.data<double>() + r * a.parts_RX.dim(1);
      const double own_m = row[heads * size + h], log_map = row[heads * size + heads + h];
      const bool spans = (links[r] & kSpans) != 0;
      const double next_m = spans ? std::max(own_m, m + log_map) : own_m;
      const double keep = spans ? std::exp(m + log_map - next_m) : 0;
      a.maps_RG.data<double>()[r * heads + h] = keep;
      const bool continues = r + 1 < parts && (links[r + 1] & kContinues) != 0;
      for (int64_t j = 0; j < size; ++j) {
        s[j] = continues ? keep * s[j] + std::exp(own_m - next_m) * row[h * size + j] : 0;
      }
      m = continues ? next_m : 0;
      if (r == a.part) a.next_max_1G.data<double>()[h] = m;
    }
  }
}

}  // namespace lt2::reference
