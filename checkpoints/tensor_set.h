// Whether a checkpoint holds what a run holds: no tensor more, none less, none of another shape.
#pragma once

#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "checkpoints/manifest.h"
#include "checkpoints/shard_file.h"
#include "parallel/communicator.h"

namespace lt2 {

// Compares the tensors of all ranks' pieces with the stored ones of `group` ("": of all groups).
// OK, or InvalidArgument naming some of each kind that differ, the same on every rank. Values and
// dtypes are not looked at. Collective.
absl::Status CheckSameTensors(const Manifest& manifest, std::span<const TensorPiece> pieces,
                              std::string_view group, Communicator& world);

}  // namespace lt2
