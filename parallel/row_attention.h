// Causal attention to all tokens of a row that ranks share, a block of heads at a time.
//
// Keys and values of a block are gathered, read by the queries here and let go; backward gathers
// them again. What the next block needs travels meanwhile. So a rank holds a few heads of the
// others' tokens while it works on them, and nothing of them until backward. Heads know nothing of
// each other: results have the same bits whatever the blocks.
//
// That all ranks' queries see as many keys, a rank works on the first half of its own and on the
// second half of the mirror rank's, R - 1 - rank, where there are enough (ContextShard::halves).
#pragma once

#include "core/tape.h"
#include "kernels/attention.h"
#include "parallel/context_shard.h"

namespace lt2 {

// As many blocks as there may be of so much each, on average, but one at least.
struct RowBlocks {
  // Of the row's keys and values. While a message is under way a link would carry 12 MB in a node
  // and 3 MB between nodes (launch/machines): of such blocks it loses a fifth at most.
  int64_t bytes = int64_t{64} << 20;
  // A rank's queries times heads: each half has about two tiles of 128 for each of a GPU's 132
  // multiprocessors.
  int64_t query_rows = 1 << 16;
};

// o [N, H, E] of the N tokens here from their q [N, H, D], k [N, G, D], v [N, G, E]; H a multiple
// of G. Kept from forward to backward: q, k and v as the tape saves them, o, and the log-sum-exp of
// as many queries. FirstTokenMass of the queries worked on here is added to first_token_mass, where
// that is defined. Not for ranks that take turns.
Var RowAttention(Tape& tape, const Var& q_NHD, const Var& k_NGD, const Var& v_NGE,
                 const AttentionOptions& options, ContextShard& shard,
                 const Tensor& first_token_mass = {}, const RowBlocks& least = {});

}  // namespace lt2
