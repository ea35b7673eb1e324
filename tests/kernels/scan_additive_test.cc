// Single steps of the additive scans (what every scan owes is in scan_property_test.cc).
#include "kernels/scan_additive.h"

#include <gtest/gtest.h>

#include "tests/kernels/scan_problem.h"

namespace lt2 {
namespace {

constexpr const char* kOps[] = {"linear_attention", "retention", "simple_gla", "gla"};

class AdditiveScan : public testing::TestWithParam<const char*> {};

// Row t of each of the two equal sequences in x [2 · length, …].
Tensor TimeRows(const Tensor& x, int64_t length, int64_t t) {
  Shape shape = x.shape();
  shape[0] = 2;
  const Tensor rows = Tensor::Empty(shape, x.dtype(), x.device());
  for (int64_t b = 0; b < 2; ++b) {
    rows.Rows(b, b + 1).CopyFrom(x.Rows(b * length + t, b * length + t + 1));
  }
  return rows;
}

TEST_P(AdditiveScan, StepsAreTheScan) {
  const std::string op = GetParam();
  const int64_t length = 90;
  const ScanSizes n{.tokens = 2 * length,
                    .key_heads = 2,
                    .heads = 4,
                    .k = 24,
                    .v = 30,
                    .cu_seqlens = {0, length, 2 * length}};
  const CaseData data = ScanProblem(op, 17, n, 0.5);
  for (const auto& [backend, dtype, tolerance] :
       {std::tuple(Backend::kReference, DType::kF64, 1e-13),
        std::tuple(Backend::kCpu, DType::kF64, 1e-12),
        std::tuple(Backend::kCpu, DType::kF32, 5e-6)}) {
    Stream stream{.device = {backend}};
    const CaseResult want = RunCase(*FindOpCase(op), data, stream, dtype);
    const auto make = [&, type = dtype](const char* name) {
      const auto found = data.inputs.find(name);
      if (found == data.inputs.end()) return Tensor();
      const HostArray& x = found->second;
      const bool flatten = BySequence(name);
      Shape shape;
      for (int i = flatten ? 1 : 0; i < x.shape.rank(); ++i) shape.push_back(x.shape[i]);
      return Tensor::FromHost(x.values, shape, type, stream.device);
    };
    const Tensor q = make("q"), k = make("k"), v = make("v"), g = make("g");
    const Tensor log_gamma = make("log_gamma"), state = make("initial_state");
    const Tensor o = Tensor::Empty({2, n.heads, n.v}, dtype, stream.device);
    for (int64_t t = 0; t < length; ++t) {
      const auto at = [&](const Tensor& x) {
        return x.defined() ? TimeRows(x, length, t) : Tensor();
      };
      ScanAdditiveStep(stream, {.q_BHK = at(q),
                                .k_BHK = at(k),
                                .v_BGV = at(v),
                                .g_BG = op == "gla" ? Tensor() : at(g),
                                .g_BGK = op == "gla" ? at(g) : Tensor(),
                                .log_gamma_G = log_gamma,
                                .state_BGKV = state,
                                .scale = 0.2,
                                .o_BGV = o});
      const std::vector<double>& all = want.outputs.at("o").values;
      const int64_t row = n.heads * n.v;
      HostArray row_want{.shape = {2 * row}};
      for (int64_t b = 0; b < 2; ++b) {
        const auto from = all.begin() + (b * length + t) * row;
        row_want.values.insert(row_want.values.end(), from, from + row);
      }
      ASSERT_LE(RelativeError({.shape = {2 * row}, .values = o.ToDoubles()}, row_want), tolerance)
          << "token " << t;
    }
    EXPECT_LE(RelativeError({.shape = state.shape(), .values = state.ToDoubles()},
                            want.outputs.at("final_state")),
              tolerance);
  }
}

INSTANTIATE_TEST_SUITE_P(Ops, AdditiveScan, testing::ValuesIn(kOps),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace lt2
