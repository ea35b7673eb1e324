// index.h5: every logical tensor of a checkpoint as one virtual HDF5 dataset over the shards.
//
//   h5py.File("index.h5")["param/layers.0.mixer.q_proj.weight"][...]
//
// A missing or foreign shard reads as NaN. lt2 itself never reads it.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "checkpoints/manifest.h"

namespace lt2 {

// Writes DIRECTORY/index.h5 from the tensors of the manifest and syncs it.
absl::StatusOr<StoredFile> WriteIndex(const std::string& directory, const Manifest& manifest);

}  // namespace lt2
