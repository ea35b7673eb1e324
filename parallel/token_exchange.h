// Operators on a tape that bring tokens' rows from other ranks of a context-parallel group. The
// gradients of what was brought go back to its owners and are added there, in rank order.
#pragma once

#include <span>
#include <vector>

#include "core/under_way.h"
#include "parallel/context_shard.h"

namespace lt2 {

// Of each x [N, …], the rows of up to `reach` tokens to the left before the own ones:
// [Halo(reach) + N, …]. All in one message between a pair of ranks; over several ranks where shards
// are shorter than `reach`. `meanwhile` is done while rows, and backward gradients, are under way.
std::vector<Var> LeftContext(Tape& tape, std::span<const Var> x, ContextShard& shard, int64_t reach,
                             const Meanwhile& meanwhile = Nothing);
// Only the own rows again: [N, …] from [Halo(reach) + N, …].
Var OwnTokens(Tape& tape, const Var& x, const ContextShard& shard, int64_t reach);

// Of each x [N, …], all rows of the row: [row_tokens, …]; where ranks take turns those up to the
// last one here. ContextShard::row() is of the same tokens. Recompute brings them again, but where
// ranks take turns.
std::vector<Var> GatherTokens(Tape& tape, std::span<const Var> x, ContextShard& shard);

}  // namespace lt2
