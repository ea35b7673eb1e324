#include "kernels/gemm.h"

#include <gtest/gtest.h>
#include <omp.h>

#include "absl/strings/str_cat.h"
#include "kernels/case.h"
#include "kernels/cpu/blas.h"

namespace lt2 {
namespace {

struct Sizes {
  int64_t m, n, k;
};

Tensor RandomTensor(const std::string& name, const Shape& shape, DType dtype, Backend backend) {
  return Tensor::FromHost(RandomNormal(1, name, shape).values, shape, dtype, {backend});
}

HostArray Product(Sizes s, bool ta, bool tb, bool accumulate, DType dtype, Backend backend) {
  const Tensor a = RandomTensor("a", ta ? Shape{s.k, s.m} : Shape{s.m, s.k}, dtype, backend);
  const Tensor b = RandomTensor("b", tb ? Shape{s.n, s.k} : Shape{s.k, s.n}, dtype, backend);
  const Tensor c = RandomTensor("c", {s.m, s.n}, dtype, backend);
  Stream stream{.device = {backend}};
  Gemm(stream,
       {.a = a, .b = b, .c = c, .transpose_a = ta, .transpose_b = tb, .accumulate = accumulate});
  return {.shape = c.shape(), .values = c.ToDoubles()};
}

constexpr Sizes kSizes[] = {{1, 1, 1}, {3, 5, 7}, {77, 131, 33}, {1100, 37, 48}, {40, 1500, 65}};

TEST(Gemm, MatchesReferenceForEveryTranspose) {
  for (const Sizes& s : kSizes) {
    for (int bits = 0; bits < 8; ++bits) {
      SCOPED_TRACE(absl::StrCat(s.m, "x", s.n, "x", s.k, " bits ", bits));
      const bool ta = bits & 1, tb = bits & 2, accumulate = bits & 4;
      const HostArray want = Product(s, ta, tb, accumulate, DType::kF64, Backend::kReference);
      const HostArray f64 = Product(s, ta, tb, accumulate, DType::kF64, Backend::kCpu);
      const HostArray f32 = Product(s, ta, tb, accumulate, DType::kF32, Backend::kCpu);
      EXPECT_LE(RelativeError(f64, want), 1e-13);
      EXPECT_LE(RelativeError(f32, want), 1e-6);
    }
  }
}

// c = addend + a b, whatever c held; the addend stays.
TEST(Gemm, AddsToAnAddend) {
  for (const Sizes& s : kSizes) {
    SCOPED_TRACE(absl::StrCat(s.m, "x", s.n, "x", s.k));
    const HostArray want = Product(s, false, true, true, DType::kF64, Backend::kReference);
    for (const Backend backend : {Backend::kReference, Backend::kCpu}) {
      const Tensor a = RandomTensor("a", {s.m, s.k}, DType::kF64, backend);
      const Tensor b = RandomTensor("b", {s.n, s.k}, DType::kF64, backend);
      const Tensor addend = RandomTensor("c", {s.m, s.n}, DType::kF64, backend);
      const Tensor c = RandomTensor("other", {s.m, s.n}, DType::kF64, backend);
      Stream stream{.device = {backend}};
      Gemm(stream, {.a = a, .b = b, .c = c, .transpose_b = true, .addend = addend});
      EXPECT_LE(RelativeError({.shape = c.shape(), .values = c.ToDoubles()}, want), 1e-13);
      EXPECT_EQ(addend.ToDoubles(),
                RandomTensor("c", {s.m, s.n}, DType::kF64, backend).ToDoubles());
    }
  }
}

TEST(Gemm, SameBitsForAnyNumberOfThreads) {
  const int threads = omp_get_max_threads();
  for (const Sizes& s : kSizes) {
    for (DType dtype : {DType::kF32, DType::kF64}) {
      SCOPED_TRACE(absl::StrCat(s.m, "x", s.n, "x", s.k, " ", Name(dtype)));
      omp_set_num_threads(1);
      const HostArray one = Product(s, false, true, false, dtype, Backend::kCpu);
      for (int count = 2; count <= 4; ++count) {
        omp_set_num_threads(count);
        EXPECT_EQ(one.values, Product(s, false, true, false, dtype, Backend::kCpu).values);
        EXPECT_EQ(omp_get_max_threads(), count) << "the caller's number of threads is restored";
      }
    }
  }
  omp_set_num_threads(threads);
}

TEST(Gemm, LeadingDimensionsAndAlpha) {
  // The 2 x 2 corners of 3 x 3 matrices; what lies outside C's corner stays.
  const double a[] = {1, 2, 9, 3, 4, 9, 9, 9, 9}, b[] = {5, 6, 9, 7, 8, 9, 9, 9, 9};
  double c[] = {0, 0, -1, 0, 0, -1, -1, -1, -1};
  cpu::Gemm<double>(false, false, 2, 2, 2, 2.0, a, 3, b, 3, 0.0, c, 3);
  EXPECT_EQ((std::vector<double>(c, c + 9)),
            (std::vector<double>{38, 44, -1, 86, 100, -1, -1, -1, -1}));
  cpu::Gemm<double>(false, true, 2, 2, 0, 2.0, a, 3, b, 3, 1.0, c, 3);  // nothing to sum: C stays
  EXPECT_EQ(c[0], 38);
}

TEST(GemmDeathTest, RefusesSizesThatDoNotFit) {
  const Device cpu{Backend::kCpu};
  Stream stream{.device = cpu};
  const Tensor a = Tensor::Zeros({2, 3}, DType::kF32, cpu),
               b = Tensor::Zeros({4, 3}, DType::kF32, cpu);
  const Tensor c = Tensor::Zeros({2, 4}, DType::kF32, cpu);
  EXPECT_DEATH(Gemm(stream, {.a = a, .b = b, .c = c}), "times");
}

}  // namespace
}  // namespace lt2
