// Weight gradients' products by warpgroups beside cuBLASLt's: they differ by the order of sums, add
// to what is there, and repeat bit for bit.
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "core/cuda.h"
#include "core/cuda/stream.h"
#include "core/log.h"
#include "kernels/case.h"
#include "kernels/cuda/gemm_warpgroup.h"
#include "kernels/cuda/timing.h"

namespace lt2 {
namespace {

constexpr Device kGpu{Backend::kCuda};

struct Sizes {
  int64_t m, n, k;
};

Tensor Random(const std::string& name, const Shape& shape, DType dtype) {
  return Tensor::FromHost(RandomNormal(1, name, shape).values, shape, dtype, kGpu);
}

void Compare(const Sizes& sizes) {
  SCOPED_TRACE(absl::StrCat(sizes.m, "x", sizes.n, "x", sizes.k));
  Stream stream{.device = kGpu};
  const cudaStream_t handle = cuda::Handle(stream);
  const Tensor a = Random("a", {sizes.k, sizes.m}, DType::kBF16);
  const Tensor b = Random("b", {sizes.k, sizes.n}, DType::kBF16);
  const Tensor before = Random("c", {sizes.m, sizes.n}, DType::kF32);
  const Tensor want = before.Clone(), got = before.Clone(), again = before.Clone();
  const Tensor turns = Tensor::Zeros({cuda::WarpgroupGemmTurns()}, DType::kI32, kGpu);
  const auto product = [&](const Tensor& c) {
    return GemmArgs{.a = a, .b = b, .c = c, .transpose_a = true, .accumulate = true};
  };
  if (!cuda::WarpgroupsTake(product(got))) GTEST_SKIP() << "this GPU has no warpgroups";
  const auto by_warpgroups = [&](const Tensor& c) {
    cuda::WarpgroupGemm(handle, product(c), static_cast<float*>(c.raw()),
                        static_cast<int*>(turns.raw()));
  };
  Gemm(stream, product(want));
  by_warpgroups(got);
  by_warpgroups(again);
  EXPECT_LE(RelativeError({want.shape(), got.ToDoubles()}, {want.shape(), want.ToDoubles()}), 2e-6);
  EXPECT_EQ(got.ToDoubles(), again.ToDoubles());
  for (double turn : turns.ToDoubles()) EXPECT_EQ(turn, 0);

  std::vector<float> one, other;
  const cuda::Timing timing(handle);
  for (int run = 0; run < 9; ++run) {
    one.push_back(timing.Once([&] { return by_warpgroups(got), true; }));
    other.push_back(timing.Once([&] { return Gemm(stream, product(want)), true; }));
  }
  LogDebug(absl::StrCat(sizes.m, "x", sizes.n, "x", sizes.k, ": by warpgroups ",
                        1e3 * cuda::MedianOf(one), " us, by cuBLASLt ", 1e3 * cuda::MedianOf(other),
                        " us"));
}

TEST(GemmWarpgroupOnGpu, AgreesWithTheLibrary) {
  if (cuda::DeviceCount() == 0) GTEST_SKIP() << "there is no GPU here";
  for (const Sizes& sizes : std::vector<Sizes>{{8, 8, 5},
                                               {264, 72, 200},
                                               {520, 136, 1030},
                                               {5632, 2048, 8192},
                                               {2048, 5632, 8192},
                                               {3072, 2048, 8192},
                                               {2048, 3072, 8192},
                                               {1536, 2048, 8192},
                                               {2048, 2048, 8192}}) {
    Compare(sizes);
  }
}

}  // namespace
}  // namespace lt2
