// What makes shards a checkpoint: its id, and the files about all of them.
#pragma once

#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "checkpoints/shard_file.h"

namespace lt2 {

// Names a save and no other: two saves of one process differ in the time, two processes in pid or
// `place`, which is the host or what else tells them apart.
std::string MakeCheckpointId(const std::string& place, int64_t step);

// Writes index.h5 and manifest.json for the shards in `directory` and syncs both and it. Returns
// the bytes of all files.
absl::StatusOr<int64_t> Assemble(const std::string& directory, const CheckpointInfo& info,
                                 std::span<const ShardContent> shards);

}  // namespace lt2
