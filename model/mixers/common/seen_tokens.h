// The tokens that attention reads where ranks share a row of them.
#pragma once

#include <initializer_list>

#include "model/mixer.h"

namespace lt2 {

constexpr int64_t kAllBefore = -1;

// Of each of `keys` [N, …]: what the queries here may read, tokens up to `reach` to the left
// (kAllBefore: all of the row), brought from the ranks that hold them. Returns the documents of
// these tokens, in which those here are the queries. Without a shard nothing changes.
const Documents& SeenTokens(Tape& tape, const MixerContext& context, int64_t reach,
                            std::initializer_list<Var*> keys);

}  // namespace lt2
