// The arithmetic of step_decision.h, one text for CPU and GPU: a few hundred operations on doubles.
#pragma once

#include <cmath>
#include <limits>

#include "kernels/adamw.h"
#include "kernels/step_decision.h"

#ifdef __CUDACC__
#define LT2_HOST_DEVICE __host__ __device__
#else
#define LT2_HOST_DEVICE
#endif

namespace lt2 {

struct StepScalarsData {
  const double *squares, *losses, *inputs;
  int64_t pieces, loss_count, tokens_at, input_count;
  double* scalars;
};

struct StepDecisionData {
  const double *scalars, *inputs;
  int64_t ranks, count, maxes;
  double clip, spike_z;
  double *counters, *hyper, *report;
};

LT2_HOST_DEVICE inline bool IsFinite(double x) { return x - x == 0; }

// After the sums over `pieces`: {sum of finite squares, the others' number}.
LT2_HOST_DEVICE inline void FillScalars(const StepScalarsData& d, double square, double bad) {
  double tokens = d.inputs[kInputTokens];
  bool finite = true;
  double* out = d.scalars + kScalarOthers;
  for (int64_t i = 0; i < d.loss_count; ++i) {
    finite = finite && IsFinite(d.losses[i]);
    *out++ = d.losses[i];
  }
  if (d.tokens_at >= 0) tokens += d.losses[d.tokens_at];
  for (int64_t i = kInputScalars; i < d.input_count; ++i) *out++ = d.inputs[i];
  d.scalars[kScalarSquares] = square;
  d.scalars[kScalarBad] = bad + d.inputs[kInputBadLosses] + (finite ? 0 : 1);
  d.scalars[kScalarTokens] = tokens;
}

// Column i over the ranks.
LT2_HOST_DEVICE inline double OverRanks(const StepDecisionData& d, int64_t i) {
  double all = d.scalars[i];
  for (int64_t r = 1; r < d.ranks; ++r) {
    const double x = d.scalars[r * d.count + i];
    all = i < d.count - d.maxes ? all + x : (x > all ? x : all);
  }
  return all;
}

LT2_HOST_DEVICE inline SkipReason ReasonToSkip(const StepDecisionData& d, double norm, double bad,
                                               double tokens) {
  if (bad > 0 || !IsFinite(norm)) return SkipReason::kNotFinite;
  if (tokens == 0) return SkipReason::kNoTokens;
  if (d.spike_z > 0 && d.counters[kCounterNorms] >= kSpikeFirstNorms) {
    const double mean = d.counters[kCounterMean], least = kSpikeLeastDeviation * mean;
    const double deviation = std::sqrt(d.counters[kCounterVariance]);
    if (norm > mean + d.spike_z * (deviation > least ? deviation : least)) {
      return SkipReason::kSpike;
    }
  }
  return SkipReason::kNone;
}

LT2_HOST_DEVICE inline void Count(double* counters, double norm, bool skipped) {
  if (skipped) {
    ++counters[kCounterSkipped];
    ++counters[kCounterSkippedInRow];
    return;
  }
  counters[kCounterSkippedInRow] = 0;
  const double norms = ++counters[kCounterNorms];
  const double weight = 1 / norms > 1 / kSpikeMemory ? 1 / norms : 1 / kSpikeMemory;
  const double delta = norm - counters[kCounterMean];
  counters[kCounterMean] += weight * delta;
  counters[kCounterVariance] = (1 - weight) * (counters[kCounterVariance] + weight * delta * delta);
}

LT2_HOST_DEVICE inline void Decide(const StepDecisionData& d) {
  const double bad = OverRanks(d, kScalarBad), tokens = OverRanks(d, kScalarTokens);
  const double divisor = tokens > 1 ? tokens : 1;
  const double norm = bad > 0 ? std::numeric_limits<double>::quiet_NaN()
                              : std::sqrt(OverRanks(d, kScalarSquares)) / divisor;
  double clip = d.clip > 0 ? d.clip / (norm + 1e-6) : 1;
  if (!(clip < 1)) clip = 1;
  const SkipReason reason = ReasonToSkip(d, norm, bad, tokens);
  Count(d.counters, norm, reason != SkipReason::kNone);

  d.hyper[kLearningRate] = d.inputs[kInputLr];
  d.hyper[kGradScale] = clip / divisor;
  d.hyper[kStep] = d.counters[kCounterNorms];
  d.hyper[kSkip] = reason != SkipReason::kNone;
  d.report[kReportNorm] = norm;
  d.report[kReportClip] = clip;
  d.report[kReportTokens] = tokens;
  d.report[kReportBad] = bad;
  d.report[kReportSkipped] = static_cast<double>(reason);
  for (int i = 0; i < kStepCounters; ++i) d.report[kReportCounters + i] = d.counters[i];
  for (int64_t i = kScalarOthers; i < d.count; ++i) {
    d.report[kReportOthers + i - kScalarOthers] = OverRanks(d, i);
  }
}

// Of F64 tensors whose elements `raw` gives.
template <class Raw>
StepScalarsData DataOf(const StepScalarsArgs& args, const Raw& raw) {
  const int64_t losses = args.losses.defined() ? args.losses.size() : 0;
  CHECK_EQ(args.scalars.size(), kScalarOthers + losses + args.inputs.size() - kInputScalars);
  CHECK_LT(args.tokens_at, losses);
  return {.squares = raw(args.squares),
          .losses = losses > 0 ? raw(args.losses) : nullptr,
          .inputs = raw(args.inputs),
          .pieces = args.squares.size(),
          .loss_count = losses,
          .tokens_at = args.tokens_at,
          .input_count = args.inputs.size(),
          .scalars = raw(args.scalars)};
}

template <class Raw>
StepDecisionData DataOf(const StepDecisionArgs& args, const Raw& raw) {
  const int64_t count = args.scalars.dim(1);
  CHECK_EQ(args.report.size(), kReportOthers + count - kScalarOthers);
  CHECK(args.counters.size() == kStepCounters && args.hyper.size() == kAdamWHypers);
  CHECK(args.maxes >= 0 && args.maxes <= count - kScalarOthers);
  return {.scalars = raw(args.scalars),
          .inputs = raw(args.inputs),
          .ranks = args.scalars.dim(0),
          .count = count,
          .maxes = args.maxes,
          .clip = args.clip,
          .spike_z = args.spike_z,
          .counters = raw(args.counters),
          .hyper = raw(args.hyper),
          .report = raw(args.report)};
}

}  // namespace lt2
