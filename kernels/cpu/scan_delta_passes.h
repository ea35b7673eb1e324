// How the sequential passes of the delta rule are spread over threads.
//
// Documents and value heads are independent, and so are the state's columns: where there are too
// few of the former, a head's value lanes are cut into tiles, each repeating the work on keys. An
// element's arithmetic is the same in every cut.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>

namespace lt2::cpu {

// One piece of a sequential pass: lanes [begin, begin + count) of one head of one document.
struct DeltaUnit {
  int64_t document, head, begin, count;
};

// The number of tiles that ends first, if a tile's cost is this share plus the rest by lanes.
inline int64_t BestTiles(int64_t units, int64_t value_width) {
  constexpr double kKeyShare = 0.2;
  constexpr int64_t kFewestLanes = 32;
  const int64_t threads = omp_get_max_threads();
  const auto time = [&](int64_t tiles) {
    const int64_t rounds = (units * tiles + threads - 1) / threads;
    return static_cast<double>(rounds) * (kKeyShare + (1 - kKeyShare) / static_cast<double>(tiles));
  };
  int64_t best = 1;
  for (int64_t tiles = 2; tiles * kFewestLanes <= value_width; ++tiles) {
    if (time(tiles) < time(best)) best = tiles;
  }
  return best;
}

// fn(DeltaUnit) for all of them, in parallel.
template <class Fn>
void ForEachDeltaUnit(int64_t documents, int64_t heads, int64_t value_width, const Fn& fn) {
  constexpr int64_t kLaneStep = 16;
  const int64_t tiles = BestTiles(documents * heads, value_width);
  const int64_t lanes = (value_width + tiles * kLaneStep - 1) / (tiles * kLaneStep) * kLaneStep;
#pragma omp parallel for schedule(dynamic) collapse(3)
  for (int64_t d = 0; d < documents; ++d) {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t tile = 0; tile < tiles; ++tile) {
        const int64_t begin = tile * lanes, count = std::min(lanes, value_width - begin);
        if (count > 0) fn(DeltaUnit{d, h, begin, count});
      }
    }
  }
}

}  // namespace lt2::cpu
