#include "kernels/state_fold.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

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

Tensor OnHost(const Values& values, const Shape& shape, Device device, DType dtype) {
  return Tensor::FromHost(values, shape, dtype, device);
}

Tensor OnHost(const std::vector<int32_t>& values, Device device) {
  return Tensor::FromHost(values, {static_cast<int64_t>(values.size())}, device);
}

int64_t MapSize(StateMap map, int64_t k) {
  return map == StateMap::kMatrix ? k * k : map == StateMap::kRows ? k : 1;
}

TEST(StateFold, AgreesWithTheReference) {
  constexpr uint32_t kSeed = 11;
  std::mt19937 random(kSeed);
  for (int trial = 0; trial < 60; ++trial) {
    const Sizes n{1 + random() % 5, 1 + random() % 3, 1 + random() % 9, 1 + random() % 9};
    const StateMap map = static_cast<StateMap>(trial % 3);
    SCOPED_TRACE(StrCat("seed ", kSeed, " trial ", trial, ": ", n.parts, " parts"));
    const int64_t state = n.heads * n.k * n.v, maps = n.heads * MapSize(map, n.k);
    const Values states = RandomValues(n.parts * (state + maps), random);
    const Values map_values = RandomValues(n.parts * maps, random);
    const std::vector<int32_t> links = RandomLinks(n.parts, random);
    for (const bool reverse : {false, true}) {
      for (int64_t part = 0; part < n.parts; ++part) {
        const auto run = [&](Backend backend) {
          Stream stream{.device = {backend}};
          const Tensor out = Tensor::Empty({1, n.heads, n.k, n.v}, DType::kF64, stream.device);
          StateFold(
              stream,
              {.states_RX = OnHost(states, {n.parts, state + maps}, stream.device, DType::kF64),
               .maps_RX = OnHost(map_values, {n.parts, maps}, stream.device, DType::kF64),
               .map = map,
               .links_R = OnHost(links, stream.device),
               .part = part,
               .reverse = reverse,
               .out_1GKV = out});
          return out.ToDoubles();
        };
        const Values got = run(Backend::kCpu), want = run(Backend::kReference);
        for (size_t i = 0; i < want.size(); ++i) {
          EXPECT_NEAR(got[i], want[i], 1e-12 * (1 + std::abs(want[i])));
        }
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
    for (const Backend backend : {Backend::kCpu, Backend::kReference}) {
      Stream stream{.device = {backend}};
      const auto empty = [&](const Shape& shape) {
        return Tensor::Empty(shape, DType::kF64, stream.device);
      };
      for (int64_t part = 0; part < n.parts; ++part) {
        const Tensor out = empty({1, n.heads, n.k, n.v}), max = empty({1, n.heads}),
                     next = empty({1, n.heads}), factors = empty({n.parts, n.heads});
        StateFoldMax(stream, {.parts_RX = OnHost(parts, {n.parts, row}, stream.device, DType::kF64),
                              .links_R = OnHost(links, stream.device),
                              .part = part,
                              .out_1GKV = out,
                              .out_max_1G = max,
                              .next_max_1G = next,
                              .maps_RG = factors});
        const Tensor plain = empty(out.shape());
        StateFold(stream,
                  {.states_RX = OnHost(states, {n.parts, state}, stream.device, DType::kF64),
                   .maps_RX = OnHost(maps, {n.parts, n.heads}, stream.device, DType::kF64),
                   .map = StateMap::kNumber,
                   .links_R = OnHost(links, stream.device),
                   .part = part,
                   .out_1GKV = plain});
        const Values got = out.ToDoubles(), frame = max.ToDoubles(), want = plain.ToDoubles();
        for (int64_t i = 0; i < state; ++i) {
          EXPECT_NEAR(std::exp(frame[i / (n.k * n.v)]) * got[i], want[i],
                      1e-12 * (1 + std::abs(want[i])));
        }
      }
    }
  }
}

}  // namespace
}  // namespace lt2
