// Exit probabilities beyond their case: they sum to 1, sure gates stay finite, tokens leave once.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/case.h"
#include "kernels/exit_loss.h"
#include "kernels/exit_select.h"

namespace lt2 {
namespace {

constexpr uint64_t kSeed = 12;

struct Result {
  std::vector<double> sums;
  std::vector<std::vector<double>> dgates, dlosses;
};

// Of `gates` [T - 1][N] and losses [T][N], all counted; the objective is loss - 0.1 entropy.
Result RunExitLoss(const std::vector<std::vector<double>>& gates,
                   const std::vector<std::vector<double>>& losses, DType dtype, Backend backend) {
  Stream stream{.device = {backend}};
  Tape tape(stream);
  const int64_t N = static_cast<int64_t>(losses[0].size());
  const auto input = [&](const std::vector<double>& values) {
    return tape.Input(Tensor::FromHost(values, {N}, dtype, stream.device), true);
  };
  std::vector<Var> gate_vars, wrt;
  std::vector<TokenLosses> loss_vars;
  for (const auto& gate : gates) gate_vars.push_back(input(gate));
  for (const auto& loss : losses) loss_vars.push_back({input(loss), input(loss)});
  const Tensor targets = Tensor::FromHost(std::vector<int32_t>(N, 3), {N}, stream.device);
  const Var sums = ExitLoss(tape, gate_vars, loss_vars, targets);
  std::vector<double> seed(sums.value.size(), 0.0);
  seed[kLossSum] = 1;
  seed[kExitEntropySum] = -0.1;
  wrt = gate_vars;
  for (const TokenLosses& loop : loss_vars) wrt.push_back(loop.loss_N);
  const std::vector<Tensor> grads = tape.Backward(
      {{sums, Tensor::FromHost(seed, sums.shape(), DType::kF64, stream.device)}}, wrt);
  Result result{.sums = sums.value.ToDoubles()};
  for (size_t i = 0; i < grads.size(); ++i) {
    (i < gates.size() ? result.dgates : result.dlosses).push_back(grads[i].ToDoubles());
  }
  return result;
}

std::vector<std::vector<double>> Random(const std::string& name, int64_t rows, int64_t N,
                                        double scale) {
  std::vector<std::vector<double>> out;
  for (int64_t r = 0; r < rows; ++r) {
    out.push_back(RandomNormal(kSeed + r, name, {N}, scale).values);
  }
  return out;
}

TEST(ExitLoss, ProbabilitiesOfEveryTokenSumToOne) {
  for (Backend backend : {Backend::kCpu, Backend::kReference}) {
    for (double gate : {-30.0, -1.0, 0.0, 2.0, 30.0}) {
      const Result r =
          RunExitLoss({{gate}, {-gate}, {0.5}}, {{1}, {2}, {3}, {4}}, DType::kF64, backend);
      double sum = 0;
      for (int t = 0; t < 4; ++t) {
        const double p = r.sums[kExitProbabilitySums + t];
        EXPECT_GE(p, 0);
        EXPECT_EQ(r.dlosses[t][0], p);
        sum += p;
      }
      EXPECT_NEAR(sum, 1, 1e-15) << gate;
    }
  }
}

// λ = 1/2 everywhere: 1/2, 1/4, 1/8, 1/8.
TEST(ExitLoss, EvenGates) {
  const Result r = RunExitLoss({{0}, {0}, {0}}, {{1}, {2}, {4}, {8}}, DType::kF32, Backend::kCpu);
  EXPECT_NEAR(r.sums[kLossSum], 2.5, 1e-15);
  EXPECT_NEAR(r.sums[kSquaredLseSum], 0.5 + 1 + 2 + 8, 1e-14);
  EXPECT_EQ(r.sums[kCountedSum], 1);
  EXPECT_NEAR(r.sums[kExitEntropySum], 1.75 * std::log(2), 1e-15);
}

TEST(ExitLoss, SureGatesStayFinite) {
  for (DType dtype : {DType::kF32, DType::kF64}) {
    for (double sure : {1e4, 1e30}) {
      const Result r = RunExitLoss({{-sure, sure}, {-sure, -sure}}, {{1, 1}, {2, 2}, {4, 4}}, dtype,
                                   Backend::kCpu);
      EXPECT_EQ(r.sums[kLossSum], 4 + 1);  // the first token leaves last, the second one first
      EXPECT_EQ(r.sums[kExitEntropySum], 0);
      for (const auto& gradients : {r.dgates, r.dlosses}) {
        for (const auto& row : gradients) {
          for (double value : row) EXPECT_TRUE(std::isfinite(value));
        }
      }
    }
  }
}

TEST(ExitSelect, TheFirstLoopToReachTheThreshold) {
  constexpr int64_t N = 200, D = 3, T = 4;
  const auto gates = Random("gate", T - 1, N, 1.5);
  for (const auto& [backend, dtype] : {std::pair{Backend::kReference, DType::kF64},
                                       {Backend::kCpu, DType::kF64},
                                       {Backend::kCpu, DType::kF32}}) {
    Stream stream{.device = {backend}};
    const Tensor out = Tensor::Zeros({N, D}, dtype, stream.device);
    const Tensor left = Tensor::FromHost(std::vector<double>(N, 1.0), {N}, dtype, stream.device);
    for (int64_t t = 0; t < T; ++t) {
      const Tensor gate =
          t + 1 < T ? Tensor::FromHost(gates[t], {N}, dtype, stream.device) : Tensor();
      const std::vector<double> h(N * D, static_cast<double>(t + 1));
      ExitSelect(stream, {.h_ND = Tensor::FromHost(h, {N, D}, dtype, stream.device),
                          .gate_N = gate,
                          .threshold = 0.7,
                          .left_N = left,
                          .out_ND = out});
    }
    const std::vector<double> got = out.ToDoubles();
    std::vector<int> leaving(T, 0);
    for (int64_t i = 0; i < N; ++i) {
      double reached = 0, remaining = 1;
      int64_t loop = 0;
      for (; loop < T - 1; ++loop) {
        const double lambda = 1 / (1 + std::exp(-gates[loop][i]));
        reached += remaining * lambda;
        remaining *= 1 - lambda;
        if (reached >= 0.7) break;
      }
      ++leaving[loop];
      for (int64_t d = 0; d < D; ++d) {
        EXPECT_EQ(got[i * D + d], static_cast<double>(loop + 1)) << "token " << i;
      }
    }
    for (int count : leaving) EXPECT_GT(count, 5);  // every way out was taken
  }
}

}  // namespace
}  // namespace lt2
