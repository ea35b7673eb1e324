// What token_exchange.h does where ranks take turns (Communicator::in_turn).
#pragma once

#include <span>
#include <vector>

#include "core/tape.h"
#include "parallel/context_shard.h"

namespace lt2 {

// LeftContext: each passes on what the next one needs of the rows that it has and was given. Of
// gradients of these rows a rank gets the sum over those to the right, adds its own and passes that
// on.
std::vector<Var> PassContext(Tape& tape, std::span<const Var> x, ContextShard& shard,
                             int64_t reach);

}  // namespace lt2
