#include "split_operators.h"

#include <cmath>
#include <limits>

#include "core/strings.h"
#include "kernels/case.h"
#include "kernels/embedding.h"
#include "kernels/rms_norm.h"
#include "kernels/split_rms_norm.h"

namespace lt2 {
namespace {

constexpr uint64_t kSeed = 5;

std::vector<double> Random(const std::string& name, const Shape& shape, double scale = 1) {
  return RandomNormal(kSeed, name, shape, scale).values;
}

Tensor ToDevice(const std::vector<double>& values, const Shape& shape, const Part& part,
                DType dtype) {
  return Tensor::FromHost(values, shape, dtype, part.device);
}

// Rows of w, of which the part holds its share.
class HeldRows {
 public:
  HeldRows(const Part& part, const std::vector<double>& w_VD, int64_t V, int64_t D)
      : first_(PartBegin(V, part.size(), part.rank())),
        last_(PartBegin(V, part.size(), part.rank() + 1)),
        param({.name = "w", .shape = {V, D}}) {
    const std::vector<double> held(w_VD.begin() + first_ * D, w_VD.begin() + last_ * D);
    const Shape shape{last_ - first_, D};
    param.Hold(Box::RowsOf(param.spec.shape, first_, last_));
    param.BindValue(ToDevice(held, shape, part, part.dtype));
    param.BindGradient(Tensor::Zeros(shape, AccumulatorOf(part.dtype), part.device));
    param.ExpectUses(1);
  }

 private:
  int64_t first_, last_;

 public:
  Param param;
};

std::vector<int32_t> Integers(const std::string& name, int64_t N, int64_t high) {
  const std::vector<double> values = RandomInts(kSeed, name, {N}, 0, high).values;
  return {values.begin(), values.end()};
}

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

}  // namespace

std::string HeadProblem::ToString() const {
  return StrCat(N, " x ", D, " x ", V, " chunks ", chunk_rows, keep ? " kept" : "",
                known ? " known" : "", per_token ? " per token" : "");
}

Outcome RunHeadLoss(const HeadProblem& problem, const Part& part) {
  const auto [N, D, V] = std::array<int64_t, 3>{problem.N, problem.D, problem.V};
  std::vector<double> x = Random("x", {N, D}), w = Random("w", {V, D}, problem.scale);
  for (int64_t row : problem.nan_rows) w[row * D] = kNaN;
  for (int64_t token : problem.nan_tokens) x[token * D] = kNaN;
  std::vector<int32_t> targets = Integers("targets", N, V);
  for (int64_t i = 1; i < N; i += 7) targets[i] = -1;
  HeldRows held(part, w, V, D);

  Stream stream{.device = part.device};
  Tape tape(stream);
  const Var x_ND = tape.Input(ToDevice(x, {N, D}, part, part.dtype), /*needs_grad=*/true);
  const Tensor targets_N = Tensor::FromHost(targets, {N}, part.device);
  const Tensor dsums = ToDevice({0.5, 0.03, 99}, {kHeadLossSums}, part, DType::kF64);
  HeadLossOptions options{.chunk_rows = problem.chunk_rows,
                          .link = problem.told_of_others ? part.link : nullptr};
  if (!problem.keep) options.keep_at_most = 0;
  if (problem.known) options.dsums = dsums;
  Outcome out;
  std::vector<Tape::Seed> seeds;
  if (problem.per_token) {
    const TokenLosses losses = HeadLossPerToken(tape, x_ND, held.param, targets_N, options);
    const DType dtype = AccumulatorOf(part.dtype);
    out.y = losses.loss_N.value.ToDoubles();
    const std::vector<double> lse = losses.lse_N.value.ToDoubles();
    out.y.insert(out.y.end(), lse.begin(), lse.end());
    seeds = {{losses.loss_N, ToDevice(Random("dloss", {N}), {N}, part, dtype)},
             {losses.lse_N, ToDevice(Random("dlse", {N}), {N}, part, dtype)}};
  } else {
    const Var sums = HeadLoss(tape, x_ND, held.param, targets_N, options);
    out.y = sums.value.ToDoubles();
    seeds = {{sums, dsums}};
  }
  out.dx = tape.Backward(std::move(seeds), std::span(&x_ND, 1))[0].ToDoubles();
  out.dw = held.param.main_grad.ToDoubles();
  return out;
}

Outcome RunEmbedding(const EmbeddingProblem& problem, const Part& part) {
  const auto [N, V, D] = std::array<int64_t, 3>{problem.N, problem.V, problem.D};
  HeldRows held(part, Random("w", {V, D}), V, D);
  Stream stream{.device = part.device};
  Tape tape(stream);
  const Var y =
      Embedding(tape, Tensor::FromHost(Integers("ids", N, V), {N}, part.device), held.param);
  tape.Backward({{y, ToDevice(Random("dy", {N, D}), {N, D}, part, part.dtype)}});
  return {y.value.ToDoubles(), {}, held.param.main_grad.ToDoubles()};
}

Outcome RunSplitRmsNorm(const NormProblem& problem, const Part& part) {
  const int64_t N = problem.N, C = problem.C / part.size(), first = part.rank() * C;
  const auto own = [&](const std::vector<double>& all) {
    return ToDevice(Columns(all, problem.C, first, first + C), {N, C}, part, part.dtype);
  };
  const DType dtype = AccumulatorOf(part.dtype);
  const std::vector<double> w = Random("w", {problem.C});
  Param weight({.name = "w", .shape = {C}}, dtype, part.device);
  weight.value.CopyFrom(ToDevice(Columns(w, problem.C, first, first + C), {C}, part, dtype));
  weight.BindGradient(Tensor::Zeros({C}, dtype, part.device));
  weight.ExpectUses(1);
  Stream stream{.device = part.device};
  Tape tape(stream);
  const Var x = tape.Input(own(Random("x", {N, problem.C}, problem.scale)), /*needs_grad=*/true);
  constexpr double kEps = 1e-3;
  const auto norm = [&](Tape& t, std::span<const Var> in) {
    return std::vector<Var>{part.link == nullptr
                                ? RmsNorm(t, in[0], weight, kEps)
                                : SplitRmsNorm(t, in[0], weight, kEps, *part.link)};
  };
  const Var y = tape.Recompute(std::span(&x, 1), norm)[0];
  const Tensor dx = tape.Backward({{y, own(Random("dy", {N, problem.C}))}}, std::span(&x, 1))[0];
  return {y.value.ToDoubles(), dx.ToDoubles(), weight.main_grad.ToDoubles()};
}

std::vector<double> Columns(const std::vector<double>& x, int64_t columns, int64_t begin,
                            int64_t end) {
  std::vector<double> values;
  for (size_t row = 0; row < x.size(); row += columns) {
    values.insert(values.end(), x.begin() + row + begin, x.begin() + row + end);
  }
  return values;
}

}  // namespace lt2
