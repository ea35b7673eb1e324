// Products large enough to be measured, on a GPU: the cache's choice is taken by a thread that
// starts anew, with the same bits; damage to the cache is survived.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "core/cuda.h"
#include "kernels/case.h"
#include "kernels/gemm.h"
#include "tests/support/temporary_directory.h"

namespace lt2 {
namespace {

constexpr Device kGpu{Backend::kCuda};

Tensor RandomTensor(const std::string& name, const Shape& shape, Device device, DType dtype) {
  return Tensor::FromHost(RandomNormal(1, name, shape).values, shape, dtype, device);
}

// Of weights' gradients (float32, added to), of inputs, and with an addend.
std::vector<std::vector<double>> Products() {
  const int64_t n = 2048, d = 1024, f = 1536;
  Stream stream{.device = kGpu};
  const Tensor x = RandomTensor("x", {n, d}, kGpu, DType::kBF16);
  const Tensor w = RandomTensor("w", {f, d}, kGpu, DType::kBF16);
  const Tensor y = RandomTensor("y", {n, f}, kGpu, DType::kBF16);
  const Tensor dw = RandomTensor("dw", {f, d}, kGpu, DType::kF32);
  const Tensor out = Tensor::Empty({n, f}, DType::kBF16, kGpu);
  const Tensor dx = Tensor::Empty({n, d}, DType::kBF16, kGpu);
  Gemm(stream, {.a = y, .b = x, .c = dw, .transpose_a = true, .accumulate = true});
  Gemm(stream, {.a = y, .b = w, .c = dx});
  Gemm(stream, {.a = x, .b = w, .c = out, .transpose_b = true, .addend = y});
  return {dw.ToDoubles(), dx.ToDoubles(), out.ToDoubles()};
}

// On a thread that has chosen nothing yet, as a new process would be.
std::vector<std::vector<double>> ProductsAnew() {
  std::vector<std::vector<double>> values;
  std::thread([&] { values = Products(); }).join();
  return values;
}

class GpuGemm : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda::DeviceCount() == 0) GTEST_SKIP() << "there is no GPU here";
    setenv("LT2_CACHE_DIR", folder_.c_str(), 1);
  }
  void TearDown() override { unsetenv("LT2_CACHE_DIR"); }

  const TemporaryDirectory directory_;
  const std::string folder_ = directory_.path();
};

TEST_F(GpuGemm, MeasuredOnceAndTheSameEverAfter) {
  const auto first = ProductsAnew();
  const std::string path = folder_ + "/gemm.txt";
  ASSERT_TRUE(std::filesystem::exists(path));
  const auto written = std::filesystem::last_write_time(path);
  EXPECT_EQ(ProductsAnew(), first);
  EXPECT_EQ(std::filesystem::last_write_time(path), written);
  std::ofstream(path) << "no cache at all\n";
  ProductsAnew();
  std::string word;
  std::ifstream(path) >> word;
  EXPECT_NE(word, "no");
}

TEST_F(GpuGemm, AgreesWithTheReference) {
  const auto got = ProductsAnew();
  const Device cpu{Backend::kCpu};
  Stream stream{.device = cpu};
  const auto on_cpu = [&](const std::string& name, const Shape& shape, DType rounded) {
    const Tensor value = RandomTensor(name, shape, cpu, rounded);
    return Tensor::FromHost(value.ToDoubles(), shape, DType::kF64, cpu);
  };
  const int64_t n = 2048, d = 1024, f = 1536;
  const Tensor x = on_cpu("x", {n, d}, DType::kBF16), w = on_cpu("w", {f, d}, DType::kBF16);
  const Tensor y = on_cpu("y", {n, f}, DType::kBF16), dw = on_cpu("dw", {f, d}, DType::kF32);
  const Tensor out = Tensor::Empty({n, f}, DType::kF64, cpu);
  const Tensor dx = Tensor::Empty({n, d}, DType::kF64, cpu);
  Gemm(stream, {.a = y, .b = x, .c = dw, .transpose_a = true, .accumulate = true});
  Gemm(stream, {.a = y, .b = w, .c = dx});
  Gemm(stream, {.a = x, .b = w, .c = out, .transpose_b = true, .addend = y});
  const auto error = [](const std::vector<double>& a, const Tensor& b) {
    return RelativeError({.shape = b.shape(), .values = a},
                         {.shape = b.shape(), .values = b.ToDoubles()});
  };
  EXPECT_LE(error(got[0], dw), 1e-5);
  EXPECT_LE(error(got[1], dx), 4e-3);  // rounded once, to eight bits
  EXPECT_LE(error(got[2], out), 4e-3);
}

}  // namespace
}  // namespace lt2
