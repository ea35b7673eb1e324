#include "core/tensor.h"

#include <gtest/gtest.h>

#include "core/box.h"
#include "core/philox.h"

namespace lt2 {
namespace {

const Device kCpu{Backend::kCpu};

TEST(Tensor, ViewsShareBytes) {
  Tensor x = Tensor::Zeros({4, 3}, DType::kF32, kCpu);
  x.Rows(1, 3).Reshape({6}).data<float>()[5] = 7;
  EXPECT_EQ(x.data<float>()[8], 7);
  x.Flat(9, 3).data<float>()[0] = 5;
  EXPECT_EQ(x.Rows(3, 4).ToDoubles(), (std::vector<double>{5, 0, 0}));
  EXPECT_FALSE(x.Rows(0, 1).unique());
}

TEST(Tensor, WrongUseDies) {
  const Tensor x = Tensor::Zeros({4, 3}, DType::kF32, kCpu);
  EXPECT_DEATH(x.data<double>(), "f32 vs f64");
  EXPECT_DEATH(x.Reshape({5}), "\\[4, 3\\] to \\[5\\]");
  EXPECT_DEATH(x.Rows(2, 5), "2..5 of \\[4, 3\\]");
  EXPECT_DEATH(Tensor().raw(), "undefined");
}

TEST(Philox, MatchesThePublishedVectors) {
  // Random123's known answers for philox4x32-10.
  EXPECT_EQ(Philox(0, 0, 0), (Philox4{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox(~uint64_t{0}, ~uint64_t{0}, ~uint64_t{0}),
            (Philox4{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox(0x299f31d0a4093822, 0x85a308d3243f6a88, 0x0370734413198a2e),
            (Philox4{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Box, RunsCoverTheIntersectionExactly) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    const int rank = 1 + static_cast<int>(Philox(seed, 0)[0] % 3);
    Box a{.begin = {}, .extent = {}}, b = a;
    for (int i = 0; i < rank; ++i) {
      const Philox4 r = Philox(seed, i + 1);
      a.begin.push_back(r[0] % 4);
      a.extent.push_back(1 + r[1] % 5);
      b.begin.push_back(r[2] % 4);
      b.extent.push_back(1 + r[3] % 5);
    }
    // Each element of a box, at its own place, as a number that names its logical coordinates.
    const auto fill = [&](const Box& box) {
      std::vector<int64_t> names;
      for (int64_t flat = 0; flat < box.size(); ++flat) {
        int64_t rest = flat, name = 0, unit = 1;
        for (int i = rank - 1; i >= 0; --i) {
          name += unit * (box.begin[i] + rest % box.extent[i]);
          rest /= box.extent[i];
          unit *= 100;
        }
        names.push_back(name);
      }
      return names;
    };
    const std::vector<int64_t> in_a = fill(a), in_b = fill(b);
    int64_t seen = 0;
    ForEachRun(a, b, [&](int64_t at_a, int64_t at_b, int64_t n) {
      for (int64_t i = 0; i < n; ++i) EXPECT_EQ(in_a.at(at_a + i), in_b.at(at_b + i));
      seen += n;
    });
    const auto both = Intersect(a, b);
    EXPECT_EQ(seen, both ? both->size() : 0);
  }
}

}  // namespace
}  // namespace lt2
