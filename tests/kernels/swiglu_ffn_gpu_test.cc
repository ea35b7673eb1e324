// Products fused with SwiGLU by warpgroups beside the same in parts: hidden has the same bits
// forward and backward, everything else differs by the order of sums at most.
#include <gtest/gtest.h>

#include <cmath>

#include "absl/strings/str_cat.h"
#include "core/cuda.h"
#include "kernels/case.h"
#include "kernels/cuda/swiglu_ffn_warpgroup.h"
#include "kernels/gated_product.h"

namespace lt2 {
namespace {

struct Sizes {
  int64_t rows, width, hidden;
};

class SwiGluFfnOnGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda::DeviceCount() == 0) GTEST_SKIP() << "there is no GPU here";
  }

  Tensor Random(const std::string& name, const Shape& shape, double scale = 1) const {
    return Tensor::FromHost(RandomNormal(1, name, shape, scale).values, shape, DType::kBF16,
                            stream_.device);
  }
  // Not zeros: what is left out shows.
  Tensor Filled(const Sizes& sizes) const {
    const Shape shape = {sizes.rows, sizes.hidden};
    return Tensor::FromHost(std::vector<double>(shape.size(), 777), shape, DType::kBF16,
                            stream_.device);
  }
  std::array<Tensor, 3> Three(const Sizes& sizes, bool hidden) const {
    return {Filled(sizes), Filled(sizes), hidden ? Filled(sizes) : Tensor()};
  }

  static void ExpectNear(const Tensor& got, const Tensor& want, double tolerance) {
    const HostArray a{got.shape(), got.ToDoubles()}, b{want.shape(), want.ToDoubles()};
    EXPECT_LE(RelativeError(a, b), tolerance);
  }

  void Compare(const Sizes& sizes, bool hidden) {
    SCOPED_TRACE(absl::StrCat(sizes.rows, "x", sizes.width, "x", sizes.hidden, " ", hidden));
    const double scale = 1 / std::sqrt(static_cast<double>(sizes.width));
    const Tensor x = Random("x", {sizes.rows, sizes.width});
    const Tensor w_gate = Random("w_gate", {sizes.hidden, sizes.width}, scale);
    const Tensor w_up = Random("w_up", {sizes.hidden, sizes.width}, scale);
    const Tensor w_down = Random("w_down", {sizes.width, sizes.hidden}, scale);
    const Tensor dy = Random("dy", {sizes.rows, sizes.width});

    const auto forward = [&](const std::array<Tensor, 3>& to) {
      return SwiGluFfnForwardArgs{
          .x = x, .w_gate = w_gate, .w_up = w_up, .gate = to[0], .up = to[1], .hidden = to[2]};
    };
    const std::array<Tensor, 3> made = Three(sizes, hidden), want = Three(sizes, hidden);
    if (!cuda::WarpgroupsTake(forward(made))) GTEST_SKIP() << "this GPU has no warpgroups";
    cuda::WarpgroupSwiGluFfn(stream_, forward(made));
    SwiGluFfnForwardInParts(stream_, forward(want));
    ExpectNear(made[0], want[0], 2e-3);
    ExpectNear(made[1], want[1], 2e-3);
    const Tensor gated = Filled(sizes);
    GatedProductForward(stream_, {.x = made[1], .gate = made[0], .y = gated});
    if (hidden) {
      EXPECT_EQ(made[2].ToDoubles(), gated.ToDoubles());
    }

    const auto backward = [&](const std::array<Tensor, 3>& to) {
      return SwiGluFfnBackwardArgs{.dy = dy,
                                   .w_down = w_down,
                                   .gate = made[0],
                                   .up = made[1],
                                   .dgate = to[0],
                                   .dup = to[1],
                                   .hidden = to[2]};
    };
    const std::array<Tensor, 3> got = Three(sizes, hidden), parts = Three(sizes, hidden);
    ASSERT_TRUE(cuda::WarpgroupsTake(backward(got)));
    cuda::WarpgroupSwiGluFfn(stream_, backward(got));
    SwiGluFfnBackwardInParts(stream_, backward(parts));
    ExpectNear(got[0], parts[0], 2e-3);
    ExpectNear(got[1], parts[1], 2e-3);
    if (hidden) {
      EXPECT_EQ(got[2].ToDoubles(), gated.ToDoubles());
    }

    const std::array<Tensor, 3> again = Three(sizes, hidden);
    cuda::WarpgroupSwiGluFfn(stream_, backward(again));
    EXPECT_EQ(again[0].ToDoubles(), got[0].ToDoubles());
    EXPECT_EQ(again[1].ToDoubles(), got[1].ToDoubles());
  }

  Stream stream_{.device = {Backend::kCuda}};
};

TEST_F(SwiGluFfnOnGpu, FusedAgreesWithParts) {
  for (const Sizes& sizes : std::vector<Sizes>{{1, 8, 8},
                                               {128, 64, 64},
                                               {300, 200, 72},
                                               {257, 520, 136},
                                               {1000, 64, 200},
                                               {4096, 1024, 2816},
                                               {5000, 1000, 3000}}) {
    for (const bool hidden : {true, false}) Compare(sizes, hidden);
  }
}

}  // namespace
}  // namespace lt2
