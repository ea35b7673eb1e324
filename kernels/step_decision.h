// What a step's update needs to know, decided where the gradients are; the host may read it later.
//
//   norm = sqrt(sum of squares) / tokens,   clip = min(1, limit / (norm + 1e-6)), or 1 without
//   limit hyper = {lr, clip / tokens, updates made with this one, whether it is skipped}
//
// An update is skipped if a gradient or a loss is not finite, if no token counts, and if norm lies
// more than spike_z deviations above its running mean: with weight w = max(1 / n, 1 / 50) for the
// n-th norm, d = norm - mean,  mean += w d,  variance = (1 - w) (variance + w d²).
#pragma once

#include "kernels/kernel.h"

namespace lt2 {

// A spike is judged once so many norms were seen, against deviations of at least this share of the
// mean; the running mean forgets over kSpikeMemory steps.
inline constexpr double kSpikeFirstNorms = 20, kSpikeLeastDeviation = 0.01, kSpikeMemory = 50;

// What the host says of a step, F64; then its own sums, then its maxes.
enum StepInputIndex { kInputLr, kInputTokens, kInputBadLosses, kInputScalars };
// What a rank adds to the step's exchange, F64; then losses, the host's sums, its maxes.
enum StepScalarIndex { kScalarSquares, kScalarBad, kScalarTokens, kScalarOthers };
// What outlives a step, F64.
enum StepCounterIndex {
  kCounterSkipped,
  kCounterSkippedInRow,
  kCounterNorms,  // updates made
  kCounterMean,
  kCounterVariance,
  kStepCounters
};
// What came of it, F64: then the counters, then losses, sums and maxes over all ranks.
enum StepReportIndex {
  kReportNorm,  // NaN if something is not finite
  kReportClip,
  kReportTokens,
  kReportBad,      // tensors whose gradient is not finite, and losses
  kReportSkipped,  // a SkipReason
  kReportCounters,
  kReportOthers = kReportCounters + kStepCounters
};
enum class SkipReason { kNone, kNotFinite, kNoTokens, kSpike };

// One rank's line: scalars = {sum of the finite squares, how many are not finite + bad losses,
// tokens, losses…, sums…, maxes…}.
struct StepScalarsArgs {
  Tensor squares;  // F64, one a tensor
  // F64, or undefined. One that is not finite is a bad loss; tokens_at: which of them counts
  // tokens, -1 for none.
  Tensor losses;
  int64_t tokens_at = -1;
  Tensor inputs;   // F64 [kInputScalars + sums + maxes]
  Tensor scalars;  // F64 [kScalarOthers + losses + sums + maxes]
};

// The decision, the same on every rank: lines are added in their order.
struct StepDecisionArgs {
  Tensor scalars;     // F64 [ranks, n]
  int64_t maxes = 0;  // how many of a line's last ones are maximised instead
  Tensor inputs;      // F64: the learning rate is read
  double clip = 0, spike_z = 0;
  Tensor counters;       // F64 [kStepCounters], read and written
  Tensor hyper, report;  // F64 [4], in the order of AdamWHyper; [kReportOthers + n - kScalarOthers]
};

LT2_KERNEL(StepScalars, StepScalarsArgs)
LT2_KERNEL(StepDecision, StepDecisionArgs)

}  // namespace lt2
