#include "kernels/state_fold.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/dtype.h"

namespace lt2::cpu {
namespace {

// One head's part of the fold: `state` [K, V] is S or D.
template <class T>
struct Head {
  const StateFoldArgs& a;
  int64_t head, k = a.out_1GKV.dim(2), v = a.out_1GKV.dim(3);
  T* state = a.out_1GKV.data<T>() + head * k * v;
  std::vector<T> before = std::vector<T>(k * v);

  const T* StateOf(int64_t part) const {
    return a.states_RX.data<T>() + part * a.states_RX.dim(1) + head * k * v;
  }
  const T* MapOf(int64_t part) const {
    const int64_t size = a.map == StateMap::kMatrix ? k * k : a.map == StateMap::kRows ? k : 1;
    return a.maps_RX.data<T>() + part * a.maps_RX.dim(1) + head * size;
  }

  // state = M state, or M^T state.
  void Map(int64_t part) {
    const T* map = MapOf(part);
    if (a.map != StateMap::kMatrix) {
      for (int64_t i = 0; i < k; ++i) {
        const T factor = map[a.map == StateMap::kRows ? i : 0];
        for (int64_t j = 0; j < v; ++j) state[i * v + j] *= factor;
      }
      return;
    }
    std::copy(state, state + k * v, before.begin());
    std::fill(state, state + k * v, T(0));
    for (int64_t i = 0; i < k; ++i) {
      for (int64_t d = 0; d < k; ++d) {
        const T m = a.reverse ? map[d * k + i] : map[i * k + d];
#pragma omp simd
        for (int64_t j = 0; j < v; ++j) state[i * v + j] += m * before[d * v + j];
      }
    }
  }

  void Cross(int64_t part, int32_t link) {
    if ((link & kSpans) != 0) {
      Map(part);
    } else {
      std::fill(state, state + k * v, T(0));
    }
    const T* own = StateOf(part);
    for (int64_t i = 0; i < k * v; ++i) state[i] += own[i];
  }

  void Run() {
    const int32_t* links = a.links_R.data<int32_t>();
    const int64_t parts = a.links_R.dim(0);
    std::fill(state, state + k * v, T(0));
    const auto keep_if = [&](bool continues) {
      if (!continues) std::fill(state, state + k * v, T(0));
    };
    if (a.reverse) {
      for (int64_t r = parts - 1; r > a.part; --r) {
        Cross(r, links[r]);
        keep_if(links[r] & kContinues);
      }
    } else {
      for (int64_t r = 0; r < a.part; ++r) {
        Cross(r, links[r]);
        keep_if(links[r + 1] & kContinues);
      }
    }
    const bool any = !a.reverse || (a.part + 1 < parts && (links[a.part + 1] & kContinues) != 0);
    if (!a.to_max_1G.defined() || !any) return;
    const T factor = std::exp(a.to_max_1G.data<T>()[head] - a.from_max_1G.data<T>()[head]);
    for (int64_t i = 0; i < k * v; ++i) state[i] *= factor;
  }
};

template <class T>
void FoldMax(const StateFoldMaxArgs& a, int64_t head) {
  const int64_t parts = a.links_R.dim(0), heads = a.out_1GKV.dim(1);
  const int64_t size = a.out_1GKV.dim(2) * a.out_1GKV.dim(3);
  const int32_t* links = a.links_R.data<int32_t>();
  T* state = a.out_1GKV.data<T>() + head * size;
  std::vector<T> running(size, T(0));
  T m = 0;
  for (int64_t r = 0; r < parts; ++r) {
    if (r == a.part) {
      std::copy(running.begin(), running.end(), state);
      a.out_max_1G.data<T>()[head] = m;
    }
    const T* row = a.parts_RX.data<T>() + r * a.parts_RX.dim(1);
    const T own_m = row[heads * size + head];
    const T through = links[r] & kSpans ? m + row[heads * (size + 1) + head] : own_m;
    const T next = std::max(own_m, through);
    const T keep = links[r] & kSpans ? std::exp(through - next) : T(0);
    const T add = std::exp(own_m - next);
    a.maps_RG.data<T>()[r * heads + head] = keep;
    const bool continues = r + 1 < parts && (links[r + 1] & kContinues) != 0;
    m = continues ? next : T(0);
    if (r == a.part) a.next_max_1G.data<T>()[head] = m;
    for (int64_t i = 0; i < size; ++i) {
      running[i] = continues ? keep * running[i] + add * row[head * size + i] : T(0);
    }
  }
}

}  // namespace

void StateFold(Stream&, const StateFoldArgs& a) {
  DispatchFloat(a.out_1GKV.dtype(), [&]<class T>() {
#pragma omp parallel for
    for (int64_t head = 0; head < a.out_1GKV.dim(1); ++head) Head<T>{a, head}.Run();
  });
}

void StateFoldMax(Stream&, const StateFoldMaxArgs& a) {
  DispatchFloat(a.out_1GKV.dtype(), [&]<class T>() {
#pragma omp parallel for
    for (int64_t head = 0; head < a.out_1GKV.dim(1); ++head) FoldMax<T>(a, head);
  });
}

}  // namespace lt2::cpu
