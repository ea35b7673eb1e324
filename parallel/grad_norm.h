// The global gradient norm: every logical element counted once, one exchange for all a step's
// scalars.
#pragma once

#include <span>
#include <vector>

#include "core/tensor.h"
#include "parallel/communicator.h"

namespace lt2 {

// The sum of squares of each tensor, in float64, into sums F64 [gradients.size()]; not finite where
// an element is not.
void SquaredNorms(Stream& stream, std::span<const Tensor> gradients, const Tensor& sums);

// min(1, limit / (norm + 1e-6)); 1 where limit is 0.
double ClipFactor(double norm, double limit);

// Over ranks, in one all-gather: sums[i] added in rank order, maxes[i] the largest. In place; the
// same bits on every rank.
void ReduceScalars(Communicator& communicator, std::span<double> sums, std::span<double> maxes);

}  // namespace lt2
