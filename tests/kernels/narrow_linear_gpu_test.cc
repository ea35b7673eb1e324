// All gradients of narrow projections at once beside those of the input and of the weights on their
// own, which deferral uses: every bit.
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "core/cuda.h"
#include "kernels/case.h"
#include "kernels/narrow_linear.h"

namespace lt2 {
namespace {

class NarrowLinearOnGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda::DeviceCount() == 0) GTEST_SKIP() << "there is no GPU here";
  }

  Tensor Random(const std::string& name, const Shape& shape, DType dtype) const {
    return Tensor::FromHost(RandomNormal(1, name, shape).values, shape, dtype, stream_.device);
  }

  void Compare(int64_t rows, int64_t width, const std::vector<int64_t>& outputs, bool accumulate) {
    SCOPED_TRACE(absl::StrCat(rows, "x", width, ", ", outputs.size(), " projections, the first ",
                              outputs[0], accumulate ? ", +=" : ""));
    NarrowLinearBackwardArgs both{.x = Random("x", {rows, width}, DType::kBF16),
                                  .dx = Random("dx", {rows, width}, DType::kBF16),
                                  .accumulate_dx = accumulate};
    for (size_t i = 0; i < outputs.size(); ++i) {
      const std::string of = absl::StrCat(i);
      both.dy.push_back(Random("dy" + of, {rows, outputs[i]}, DType::kBF16));
      both.w.push_back(Random("w" + of, {outputs[i], width}, DType::kBF16));
      both.dw.push_back(Random("dw" + of, {outputs[i], width}, DType::kF32));
    }
    NarrowLinearBackwardArgs apart = both;
    apart.dx = both.dx.Clone();
    for (Tensor& dw : apart.dw) dw = dw.Clone();

    NarrowLinearBackward(stream_, both);
    NarrowLinearInput(stream_, apart.input());
    NarrowLinearWeight(stream_, apart.weight());
    EXPECT_EQ(both.dx.ToDoubles(), apart.dx.ToDoubles());
    for (size_t i = 0; i < outputs.size(); ++i) {
      EXPECT_EQ(both.dw[i].ToDoubles(), apart.dw[i].ToDoubles()) << i;
    }
  }

  Stream stream_{.device = {Backend::kCuda}};
};

TEST_F(NarrowLinearOnGpu, BothGradientsAtOnceHaveTheBitsOfEach) {
  for (const bool accumulate : {false, true}) {
    Compare(16384, 2048, {16, 16}, accumulate);
    Compare(301, 328, {8, 16}, accumulate);
    Compare(4333, 72, {8}, accumulate);
    Compare(150, 24, {40, 16}, accumulate);  // too many pieces
    Compare(61, 1024, {3, 5, 9}, accumulate);
  }
}

}  // namespace
}  // namespace lt2
