// Opens a checkpoint and loads any boxes of its tensors, whatever mesh wrote them.
//
//   ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::Open(directory));
//   RETURN_IF_ERROR(checkpoint.Load(pieces));
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoints/shard_file.h"

namespace lt2 {

struct LoadOptions {
  // Also read and check those stored boxes whole of which only a part is wanted.
  bool verify_all = false;
  // f32 and f64 may be loaded into each other; otherwise dtypes must agree.
  bool convert = false;
};

class Checkpoint {
 public:
  // Reads the manifest and checks of every file that it is there, has its size and its frame.
  // NotFound if there is no such directory; DataLoss naming the damaged or missing file (the
  // manifest is one); InvalidArgument if the format is newer than this program; else what kept a
  // file from being read.
  static absl::StatusOr<Checkpoint> Open(const std::string& directory);

  const std::string& directory() const { return directory_; }
  const CheckpointInfo& info() const { return manifest_.info; }
  const Manifest& manifest() const { return manifest_; }
  // An open file of the checkpoint; `name` must be one of the manifest's.
  const ByteFile& file(const std::string& name) const { return files_.at(name); }

  // Fills every piece from the stored boxes it intersects, reading only what it needs. A box read
  // whole is held against its hash: DataLoss naming file and tensor. Of a box that is wanted in
  // part damage goes unseen without `verify_all` (Verify the checkpoint before), but for a file too
  // short. NotFound: no such tensor; InvalidArgument: its shape or dtype differs. Only this rank's
  // pieces; not collective.
  absl::Status Load(std::span<const TensorPiece> pieces, const LoadOptions& options = {});

 private:
  Checkpoint(std::string directory, Manifest manifest)
      : directory_(std::move(directory)), manifest_(std::move(manifest)) {}
  absl::Status CheckFiles();
  absl::Status LoadPiece(const TensorPiece& piece, const LoadOptions& options);
  absl::Status LoadBox(const StoredTensor& tensor, const StoredBox& stored,
                       const TensorPiece& piece, const LoadOptions& options);

  std::string directory_;
  Manifest manifest_;
  std::map<std::string, ByteFile> files_;  // open, by name
  std::vector<std::byte> scratch_;
};

}  // namespace lt2
