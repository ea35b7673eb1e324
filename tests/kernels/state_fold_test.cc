#include "kernels/state_fold.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "core/cuda.h"
#include "core/strings.h"

namespace lt2 {
namespace {

using Values = std::vector<double>;

struct Sizes {
  int64_t parts, heads, k, v;
};

Values RandomValues(int64_t n, std::mt19937& random) {
  std::normal_distribution<double> normal;
  Values values(n);
  for (double& value : values) value = normal(random);
  return values;
}

std::vector<int32_t> RandomLinks(int64_t parts, std::mt19937& random) {
  std::vector<int32_t> links(parts);
  for (int32_t& link : links) link = static_cast<int32_t>(random() % 4);
  links[0] &= ~kContinues;
  return links;
}

Tensor OnDevice(const Values& values, const Shape& shape, Device device, DType dtype) {
  return Tensor::FromHost(values, shape, dtype, device);
}

Tensor OnDevice(const std::vector<int32_t>& values, Device device) {
  return Tensor::FromHost(values, {static_cast<int64_t>(values.size())}, device);
}

int64_t MapSize(StateMap map, int64_t k) {
  return map == StateMap::kMatrix ? k * k : map == StateMap::kRows ? k : 1;
}

// One fold, and what it comes to on a backend.
struct Problem {
  Problem(const Sizes& sizes, StateMap of, std::mt19937& random)
      : n(sizes),
        map(of),
        state(n.heads * n.k * n.v),
        maps(n.heads * MapSize(map, n.k)),
        states(RandomValues(n.parts * (state + maps), random)),
        map_values(RandomValues(n.parts * maps, random)),
        links(RandomLinks(n.parts, random)) {}

  Values Run(Backend backend, DType dtype, int64_t part, bool reverse) const {
    Stream stream{.device = {backend}};
    const Tensor out = Tensor::Empty({1, n.heads, n.k, n.v}, dtype, stream.device);
    StateFold(stream, {.states_RX = OnDevice(states, {n.parts, state + maps}, stream.device, dtype),
                       .maps_RX = OnDevice(map_values, {n.parts, maps}, stream.device, dtype),
                       .map = map,
                       .links_R = OnDevice(links, stream.device),
                       .part = part,
                       .reverse = reverse,
                       .out_1GKV = out});
    return out.ToDoubles();
  }

  Sizes n;
  StateMap map;
  int64_t state, maps;
  Values states, map_values;
  std::vector<int32_t> links;
};

TEST(StateFold, AgreesWithTheReference) {
  constexpr uint32_t kSeed = 11;
  std::mt19937 random(kSeed);
  for (int trial = 0; trial < 60; ++trial) {
    const Sizes n{1 + random() % 5, 1 + random() % 3, 1 + random() % 9, 1 + random() % 9};
    const Problem problem(n, static_cast<StateMap>(trial % 3), random);
    SCOPED_TRACE(StrCat("seed ", kSeed, " trial ", trial, ": ", n.parts, " parts"));
    for (const bool reverse : {false, true}) {
      for (int64_t part = 0; part < n.parts; ++part) {
        const Values got = problem.Run(Backend::kCpu, DType::kF64, part, reverse);
        const Values want = problem.Run(Backend::kReference, DType::kF64, part, reverse);
        for (size_t i = 0; i < want.size(); ++i) {
          EXPECT_NEAR(got[i], want[i], 1e-12 * (1 + std::abs(want[i])));
        }
      }
    }
  }
}

// Sums of up to 96 products four times over, in float.
TEST(StateFold, AGpuAgreesWithTheReference) {
  if (cuda::DeviceCount() == 0) GTEST_SKIP() << "there is no GPU here";
  constexpr uint32_t kSeed = 13;
  std::mt19937 random(kSeed);
  for (int trial = 0; trial < 30; ++trial) {
    const int64_t k = trial % 2 == 0 ? 96 : 1 + random() % 40, v = trial % 2 == 0 ? 72 : 1 + k / 2;
    const Problem problem({1 + random() % 5, 2, k, v}, static_cast<StateMap>(trial % 3), random);
    SCOPED_TRACE(StrCat("seed ", kSeed, " trial ", trial, ": k ", k, " v ", v));
    for (const bool reverse : {false, true}) {
      for (int64_t part = 0; part < problem.n.parts; ++part) {
        const Values got = problem.Run(Backend::kCuda, DType::kF32, part, reverse);
        const Values want = problem.Run(Backend::kReference, DType::kF64, part, reverse);
        double error = 0, norm = 0;
        for (size_t i = 0; i < want.size(); ++i) {
          error += (got[i] - want[i]) * (got[i] - want[i]);
          norm += want[i] * want[i];
        }
        EXPECT_LE(std::sqrt(error), 1e-6 * std::sqrt(norm));
      }
    }
  }
}

// exp(m) S of a fold in frames is that of the fold without them.
TEST(StateFold, FramesCancel) {
  constexpr uint32_t kSeed = 12;
  std::mt19937 random(kSeed);
  for (int trial = 0; trial < 60; ++trial) {
    const Sizes n{1 + random() % 5, 1 + random() % 3, 1 + random() % 5, 1 + random() % 5};
    SCOPED_TRACE(StrCat("seed ", kSeed, " trial ", trial, ": ", n.parts, " parts"));
    const int64_t state = n.heads * n.k * n.v, row = state + 2 * n.heads;
    const Values parts = RandomValues(n.parts * row, random);
    const std::vector<int32_t> links = RandomLinks(n.parts, random);
    Values states, maps;  // without frames
    for (int64_t r = 0; r < n.parts; ++r) {
      for (int64_t i = 0; i < state; ++i) {
        const double max = parts[r * row + state + i / (n.k * n.v)];
        states.push_back(std::exp(max) * parts[r * row + i]);
      }
      for (int64_t h = 0; h < n.heads; ++h) {
        maps.push_back(std::exp(parts[r * row + state + n.heads + h]));
      }
    }
    for (const Backend backend : {Backend::kCpu, Backend::kReference, Backend::kCuda}) {
      if (backend == Backend::kCuda && cuda::DeviceCount() == 0) continue;
      const DType dtype = backend == Backend::kCuda ? DType::kF32 : DType::kF64;
      Stream stream{.device = {backend}};
      const auto empty = [&](const Shape& shape) {
        return Tensor::Empty(shape, dtype, stream.device);
      };
      for (int64_t part = 0; part < n.parts; ++part) {
        const Tensor out = empty({1, n.heads, n.k, n.v}), max = empty({1, n.heads}),
                     next = empty({1, n.heads}), factors = empty({n.parts, n.heads});
        StateFoldMax(stream, {.parts_RX = OnDevice(parts, {n.parts, row}, stream.device, dtype),
                              .links_R = OnDevice(links, stream.device),
                              .part = part,
                              .out_1GKV = out,
                              .out_max_1G = max,
                              .next_max_1G = next,
                              .maps_RG = factors});
        const Tensor plain = empty(out.shape());
        StateFold(stream, {.states_RX = OnDevice(states, {n.parts, state}, stream.device, dtype),
                           .maps_RX = OnDevice(maps, {n.parts, n.heads}, stream.device, dtype),
                           .map = StateMap::kNumber,
                           .links_R = OnDevice(links, stream.device),
                           .part = part,
                           .out_1GKV = plain});
        const Values got = out.ToDoubles(), frame = max.ToDoubles(), want = plain.ToDoubles();
        for (int64_t i = 0; i < state; ++i) {
          EXPECT_NEAR(std::exp(frame[i / (n.k * n.v)]) * got[i], want[i],
                      (dtype == DType::kF64 ? 1e-12 : 1e-5) * (1 + std::abs(want[i])));
        }
      }
    }
  }
}

}  // namespace
}  // namespace lt2
