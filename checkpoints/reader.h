// Opens a checkpoint and loads any boxes of its tensors, whatever mesh wrote them.
//
//   ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::Open(directory, world));
//   RETURN_IF_ERROR(checkpoint.Load(pieces));
//
// The ranks of a group read together: a stored box of which anything is wanted is read once, by one
// of them, who holds it against its hash and passes it on to those that want it. So a load costs
// the disk no more than the boxes' bytes, and nothing that is loaded goes unchecked.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoints/shard_file.h"
#include "parallel/communicator.h"

namespace lt2 {

struct LoadOptions {
  // f32 and f64 may be loaded into each other; otherwise dtypes must agree.
  bool convert = false;
  // What a rank reads, and passes on, at a time; some times as much is held in memory.
  int64_t round_bytes = 16 << 20;
};

class Checkpoint {
 public:
  // Reads the manifest and checks of every file that it is there, has its size and its frame.
  // NotFound if there is no such directory; DataLoss naming the damaged or missing files (the
  // manifest is one); InvalidArgument if the format is newer than this program; else what kept a
  // file from being read.
  static absl::StatusOr<Checkpoint> Open(const std::string& directory);
  // The same by a group of ranks, which share the files out and get the same status. `group` must
  // outlive the checkpoint. Collective.
  static absl::StatusOr<Checkpoint> Open(const std::string& directory, Communicator& group);

  const std::string& directory() const { return directory_; }
  const CheckpointInfo& info() const { return manifest_.info; }
  const Manifest& manifest() const { return manifest_; }
  // An open file of a checkpoint that one process opened for itself; `name` must be one of the
  // manifest's.
  const ByteFile& file(const std::string& name) const { return files_.at(name); }

  // Fills the pieces of all ranks of the group from the stored boxes. Every rank gets the same
  // status, and only if it is OK what was loaded is to be trusted. DataLoss naming files and
  // tensors that are damaged; NotFound: no such tensor; InvalidArgument: its shape or dtype
  // differs; else what kept a file from being read. Collective.
  absl::Status Load(std::span<const TensorPiece> pieces, const LoadOptions& options = {});

  // What this rank has read of the checkpoint so far.
  int64_t bytes_read() const;

 private:
  Checkpoint(std::string directory, std::shared_ptr<Communicator> group)
      : directory_(std::move(directory)), group_(std::move(group)) {}
  static absl::StatusOr<Checkpoint> Open(const std::string& directory,
                                         std::shared_ptr<Communicator> group);
  absl::Status ReadManifestTogether();
  absl::Status CheckFiles();
  absl::StatusOr<const ByteFile*> OpenFile(const std::string& name);
  // What all ranks have found: the first failure, else DataLoss of all damages. Collective.
  absl::Status AgreeOn(const absl::Status& failure, const std::vector<absl::Status>& damages);

  std::string directory_;
  std::shared_ptr<Communicator> group_;
  Manifest manifest_;
  int64_t manifest_bytes_ = 0;             // that this rank read of it
  std::map<std::string, ByteFile> files_;  // open, by name
};

}  // namespace lt2
