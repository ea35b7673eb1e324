// Who of a group of ranks reads which rows of a checkpoint's boxes, and when: a pure function, so
// that every rank knows what the others read and whom they pass it on to.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "checkpoints/manifest.h"
#include "core/box.h"

namespace lt2 {

// A part of a tensor that a rank will hold.
struct Want {
  int tensor = 0;  // index into the manifest's
  Box box;
};

// Consecutive rows (of the leading extent) of a stored box.
struct LoadChunk {
  int tensor = 0, box = 0;  // indices into the manifest's
  Box rows;
};

// What one rank reads before all exchange what they have read.
using LoadRound = std::vector<LoadChunk>;

struct LoadPlan {
  // By reader. All chunks of a box have the same one, and come in order.
  std::vector<std::vector<LoadRound>> readers;
  size_t rounds() const;  // of the rank that has most
};

// wants: by rank. A box is read by the rank that wants the most of it; of several, by the one that
// has read the least. In a round a rank reads, and passes on, about `round_bytes` at most.
LoadPlan PlanLoad(const Manifest& manifest, std::span<const std::vector<Want>> wants,
                  int64_t round_bytes);

}  // namespace lt2
