// Whether ranks that ought to hold the same bits do: memory and arithmetic fail silently, and then
// a replica drifts.
#pragma once

#include <span>

#include "absl/status/status.h"
#include "parallel/layout.h"

namespace lt2 {

// Compares a checksum of every parameter's master among the ranks that hold the same part of it.
// Values must be those of one step everywhere (Optimizer::WaitForValues). OK, or Internal on the
// ranks that share a group with one that differs, naming the ranks that are fewer, their hosts and
// the first parameter. Collective.
absl::Status CheckReplicas(Stream& stream, std::span<Param* const> params,
                           const LayoutTable& layout, const RankGroups& groups);

}  // namespace lt2
