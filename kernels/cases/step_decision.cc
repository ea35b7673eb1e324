#include "kernels/step_decision.h"

#include "absl/strings/str_cat.h"
#include "kernels/adamw.h"
#include "kernels/case.h"

namespace lt2 {
namespace {

struct Sizes {
  int64_t steps, ranks, pieces, losses, sums, maxes;
};

CaseData Instance(uint64_t seed, const Sizes& s, double clip, double spike_z) {
  HostArray squares = RandomUniform(seed, "squares", {s.steps * s.ranks, s.pieces}, 1, 3);
  // The last norm is far above the others.
  for (int64_t i = (s.steps - 1) * s.ranks * s.pieces; i < squares.shape.size(); ++i) {
    squares.values[i] *= 64;
  }
  return {
      .op = "step_decision",
      .name = absl::StrCat(s.steps, "x", s.ranks, "x", s.pieces, spike_z > 0 ? "_spike" : ""),
      .attributes = {{"clip", clip}, {"spike_z", spike_z}, {"maxes", double(s.maxes)}},
      .inputs = {{"squares", squares},
                 {"losses", RandomUniform(seed, "losses", {s.steps * s.ranks, s.losses}, 1, 9)},
                 {"scalars", RandomUniform(seed, "scalars", {s.ranks, s.sums + s.maxes}, -1, 1)}}};
}

// Float64 whatever the run's dtype is.
Tensor InDouble(const Tensor& x) {
  if (x.on_meta()) return Tensor::Empty(x.shape(), DType::kF64, x.device());
  return Tensor::FromHost(x.ToDoubles(), x.shape(), DType::kF64, x.device());
}

// Steps one after the other, of all ranks in one place.
std::map<std::string, Var> Run(CaseContext& c) {
  Stream& stream = c.tape().stream();
  const Tensor squares = InDouble(c.Value("squares")), losses = InDouble(c.Value("losses"));
  const Tensor scalars = InDouble(c.Value("scalars"));
  const int64_t ranks = scalars.dim(0), others = scalars.dim(1), kinds = losses.dim(1);
  const auto zeros = [&](const Shape& shape) {
    return Tensor::Zeros(shape, DType::kF64, stream.device);
  };
  const Tensor counters = zeros({kStepCounters}), hyper = zeros({kAdamWHypers});
  const Tensor report = zeros({kReportOthers + kinds + others});
  const Tensor lines = zeros({ranks, kScalarOthers + kinds + others});
  const Tensor inputs = zeros({ranks, kInputScalars + others});
  for (int64_t r = 0; r < ranks; ++r) {
    inputs.Flat(r * inputs.dim(1) + kInputScalars, others).CopyFrom(scalars.Rows(r, r + 1));
  }
  for (int64_t line = 0; line < squares.dim(0); ++line) {
    const int64_t r = line % ranks;
    StepScalars(stream, {.squares = squares.Rows(line, line + 1),
                         .losses = losses.Rows(line, line + 1),
                         .tokens_at = kinds - 1,
                         .inputs = inputs.Rows(r, r + 1),
                         .scalars = lines.Rows(r, r + 1)});
    if (r + 1 < ranks) continue;
    StepDecision(stream, {.scalars = lines,
                          .maxes = static_cast<int64_t>(c.Number("maxes")),
                          .inputs = inputs.Rows(0, 1),
                          .clip = c.Number("clip"),
                          .spike_z = c.Number("spike_z"),
                          .counters = counters,
                          .hyper = hyper,
                          .report = report});
  }
  return {{"hyper", {.value = hyper}},
          {"counters", {.value = counters}},
          {"report", {.value = report}}};
}

}  // namespace

OpCase StepDecisionCase() {
  return {.op = "step_decision",
          .run = Run,
          .instances =
              [](uint64_t seed) {
                return std::vector<CaseData>{Instance(seed, {1, 1, 1, 1, 0, 0}, 0, 0),
                                             Instance(seed, {3, 4, 300, 3, 2, 4}, 0.1, 0),
                                             Instance(seed, {25, 2, 7, 2, 1, 1}, 1, 5)};
              },
          .bench =
              [] {
                return Instance(0, {1, 1, 512, 4, 0, 4}, 1, 6);
              }};
}

}  // namespace lt2
