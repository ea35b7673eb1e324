// Writes a whole checkpoint again, cut for another number of ranks.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "checkpoints/reader.h"
#include "checkpoints/scan.h"

namespace lt2 {

// Makes the checkpoint `to`, which must not exist: `files` shards, each with an even share of the
// rows of every tensor; 1: everything in one file. Every stored byte is read once and held against
// its hash, in bounded memory. Published by rename, as a save is: `to` is whole or absent. Returns
// the bytes of all its files. InvalidArgument if `to` exists; DataLoss naming file and tensor.
absl::StatusOr<int64_t> Reshard(const Checkpoint& from, const std::string& to, int files,
                                const ScanOptions& options = {});

}  // namespace lt2
