// Many tensors in one launch on a GPU: as the CPU has them, and as each of them alone.
#include <gtest/gtest.h>

#include <cmath>

#include "core/cuda.h"
#include "kernels/adamw.h"
#include "kernels/case.h"
#include "kernels/squared_norm.h"

namespace lt2 {
namespace {

constexpr uint64_t kSeed = 17;
constexpr int64_t kPool = 1 << 20;
constexpr Device kGpu{Backend::kCuda};

// More pieces than one launch takes, of all sizes, some not aligned: begin and size.
std::vector<std::pair<int64_t, int64_t>> Pieces() {
  std::vector<std::pair<int64_t, int64_t>> pieces;
  int64_t begin = 0;
  for (int64_t i = 0; i < 1100; ++i) {
    const int64_t size = i == 3 ? 100'003 : i == 5 ? 65'536 : 1 + i * 37 % 700;
    pieces.push_back({begin, size});
    begin += size;
    if (i % 3 != 0) begin = (begin + 15) / 16 * 16;
  }
  CHECK_LT(begin, kPool);
  return pieces;
}

Tensor Random(const char* name, double scale, Device device) {
  return Tensor::FromHost(RandomNormal(kSeed, name, {kPool}, scale).values, {kPool}, DType::kF32,
                          device);
}

class UpdateOnGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda::DeviceCount() == 0) GTEST_SKIP() << "there is no GPU here";
  }
};

TEST_F(UpdateOnGpu, SquaredNormsAreTheCpus) {
  std::vector<double> sums[2];
  for (const Device device : {Device{Backend::kCpu}, kGpu}) {
    Stream stream{.device = device};
    const Tensor x = Random("x", 1, device);
    std::vector<Tensor> pieces = {x.Flat(0, 0)};
    for (const auto& [begin, size] : Pieces()) pieces.push_back(x.Flat(begin, size));
    const int64_t count = static_cast<int64_t>(pieces.size());
    const Tensor of_pieces = Tensor::Empty({count}, DType::kF64, device);
    SquaredNorms(stream, {.x = pieces, .sums = of_pieces});
    sums[device == kGpu] = of_pieces.ToDoubles();
  }
  for (size_t i = 0; i < sums[0].size(); ++i) {
    ASSERT_NEAR(sums[1][i], sums[0][i], 1e-12 * sums[0][i]) << i;
  }
}

struct State {
  Tensor param, grad, m, v, value;
};

State StateOn(Device device) {
  State state{Random("param", 1, device), Random("grad", 1e-2, device), Random("m", 1e-2, device),
              Tensor(), Tensor::Zeros({kPool}, DType::kBF16, device)};
  HostArray v = RandomNormal(kSeed, "v", {kPool}, 1e-3);
  for (double& x : v.values) x = std::abs(x);
  state.v = Tensor::FromHost(v.values, {kPool}, DType::kF32, device);
  return state;
}

void Update(const State& state, bool at_once) {
  Stream stream{.device = state.param.device()};
  std::vector<AdamWPiece> pieces;
  for (const auto& [begin, size] : Pieces()) {
    pieces.push_back({.param = state.param.Flat(begin, size),
                      .grad = state.grad.Flat(begin, size),
                      .m = state.m.Flat(begin, size),
                      .v = state.v.Flat(begin, size),
                      .value = pieces.size() % 3 == 0 ? Tensor() : state.value.Flat(begin, size),
                      .decay = pieces.size() % 2 == 0});
  }
  const std::vector<double> numbers = {1e-2, 0.7, 5, 0};
  const Tensor hyper = Tensor::FromHost(numbers, {kAdamWHypers}, DType::kF64, stream.device);
  const size_t step = at_once ? pieces.size() : 1;
  for (size_t i = 0; i < pieces.size(); i += step) {
    AdamW(stream,
          {.pieces = std::span(pieces).subspan(i, step), .hyper = hyper, .weight_decay = 0.1});
  }
}

TEST_F(UpdateOnGpu, AdamWOfManyPiecesIsThatOfEach) {
  const State together = StateOn(kGpu), alone = StateOn(kGpu), host = StateOn({Backend::kCpu});
  Update(together, true);
  Update(alone, false);
  Update(host, true);
  const auto each = [](const State& s) { return std::vector{s.param, s.m, s.v, s.value}; };
  for (size_t t = 0; t < 4; ++t) {
    const std::vector<double> a = each(together)[t].ToDoubles(), b = each(alone)[t].ToDoubles();
    EXPECT_EQ(a, b);
    // The moments and the value of a step, in units of float32 or bfloat16 rounding.
    const std::vector<double> want = each(host)[t].ToDoubles();
    const double tolerance = t == 3 ? 0x1p-7 : 1e-5;
    for (size_t i = 0; i < a.size(); ++i) {
      ASSERT_NEAR(a[i], want[i], tolerance * (std::abs(want[i]) + 1e-2)) << t << " " << i;
    }
  }
}

}  // namespace
}  // namespace lt2
