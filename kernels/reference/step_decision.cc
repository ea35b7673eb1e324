#include "kernels/step_decision.h"

#include <algorithm>
#include <cmath>

#include "kernels/adamw.h"

namespace lt2::reference {

void StepScalars(Stream&, const StepScalarsArgs& args) {
  const std::span<double> inputs = args.inputs.span<double>();
  std::vector<double> others;
  if (args.losses.defined()) {
    others.assign(args.losses.span<double>().begin(), args.losses.span<double>().end());
  }
  double square = 0, bad = inputs[kInputBadLosses], tokens = inputs[kInputTokens];
  for (double x : args.squares.span<double>()) std::isfinite(x) ? square += x : ++bad;
  if (std::ranges::any_of(others, [](double x) { return !std::isfinite(x); })) ++bad;
  if (args.tokens_at >= 0) tokens += others[args.tokens_at];
  others.insert(others.end(), inputs.begin() + kInputScalars, inputs.end());
  double* out = args.scalars.data<double>();
  for (double x : {square, bad, tokens}) *out++ = x;
  std::ranges::copy(others, out);
}

void StepDecision(Stream&, const StepDecisionArgs& args) {
  const int64_t ranks = args.scalars.dim(0), count = args.scalars.dim(1);
  std::vector<double> all(count, 0.0);
  for (int64_t i = 0; i < count; ++i) {
    const bool max = i >= count - args.maxes;
    for (int64_t r = 0; r < ranks; ++r) {
      const double x = args.scalars.data<double>()[r * count + i];
      all[i] = r == 0 ? x : max ? std::max(all[i], x) : all[i] + x;
    }
  }
  double* counters = args.counters.data<double>();
  const double tokens = std::max(1.0, all[kScalarTokens]), bad = all[kScalarBad];
  const double norm = bad > 0 ? NAN : std::sqrt(all[kScalarSquares]) / tokens;
  const double clip = args.clip > 0 && norm >= 0 ? std::min(1.0, args.clip / (norm + 1e-6)) : 1;
  const double deviation = std::max(std::sqrt(counters[kCounterVariance]),
                                    kSpikeLeastDeviation * counters[kCounterMean]);
  SkipReason reason = SkipReason::kNone;
  if (!std::isfinite(norm)) {
    reason = SkipReason::kNotFinite;
  } else if (all[kScalarTokens] == 0) {
    reason = SkipReason::kNoTokens;
  } else if (args.spike_z > 0 && counters[kCounterNorms] >= kSpikeFirstNorms &&
             (norm - counters[kCounterMean]) / deviation > args.spike_z) {
    reason = SkipReason::kSpike;
  }
  if (reason == SkipReason::kNone) {
    const double w = std::max(1 / ++counters[kCounterNorms], 1 / kSpikeMemory);
    const double d = norm - counters[kCounterMean];
    counters[kCounterMean] += w * d;
    counters[kCounterVariance] = (1 - w) * (counters[kCounterVariance] + w * d * d);
    counters[kCounterSkippedInRow] = 0;
  } else {
    counters[kCounterSkipped] += 1;
    counters[kCounterSkippedInRow] += 1;
  }
  const bool skip = reason != SkipReason::kNone;
  const double hyper[] = {args.inputs.data<double>()[kInputLr], clip / tokens,
                          counters[kCounterNorms], skip ? 1.0 : 0.0};
  std::ranges::copy(hyper, args.hyper.data<double>());
  double* report = args.report.data<double>();
  for (double x : {norm, clip, all[kScalarTokens], bad, static_cast<double>(reason)}) *report++ = x;
  report = std::copy_n(counters, kStepCounters, report);
  std::copy(all.begin() + kScalarOthers, all.end(), report);
}

}  // namespace lt2::reference
