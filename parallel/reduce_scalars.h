// A few numbers of the host over all ranks, in one exchange.
#pragma once

#include <span>

#include "parallel/communicator.h"

namespace lt2 {

// In one all-gather: sums[i] added in rank order, maxes[i] the largest. In place; the same bits on
// every rank.
void ReduceScalars(Communicator& communicator, std::span<double> sums, std::span<double> maxes);

}  // namespace lt2
