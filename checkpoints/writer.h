// Saves the pieces of all ranks as one checkpoint: written beside its name, published by rename.
//
//   RETURN_IF_ERROR(writer.Begin(info, pieces));   // async: a thread copies and writes
//   …what only reads the tensors…; writer.AwaitCopy();
//   …steps…; whenever every rank is LocalDone():
//   ASSIGN_OR_RETURN(std::optional<SavedCheckpoint> saved, writer.Advance());
//
// Begin and Advance are collective and called by the thread that owns the communicator; the writing
// thread never talks to other ranks. At most one save is in flight. A directory with a checkpoint's
// name is whole at every moment, whenever the run is killed.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoints/catalog.h"
#include "checkpoints/shard_file.h"
#include "checkpoints/staging.h"
#include "parallel/communicator.h"

namespace lt2 {

struct WriterOptions {
  bool async = false;
  bool verify_writes = false;  // read every box back from disk before publishing
  Retention retention;
  // The ranks that write one file together, this one among them (those of a host); nullptr: each
  // rank has a file of its own. All saves must then be of the same boxes: where they lie is agreed
  // on at the first.
  std::shared_ptr<Communicator> sharing;
  // Asked by rank 0 right before publishing: an error (the run's lock was lost) discards the save.
  std::function<absl::Status()> may_publish = [] { return absl::OkStatus(); };
};

struct SavedCheckpoint {
  std::string path;
  int64_t step = 0;
  int64_t bytes = 0;           // of all files
  double stalled_seconds = 0;  // this rank's time in the calls of one save
  double writing_seconds = 0;  // from the beginning of Begin to the end
};

class Writer {
 public:
  // `root` is the folder of the step directories. `world` must outlive the writer.
  Writer(std::string root, Communicator& world, WriterOptions options);
  Writer(const Writer&) = delete;
  // Waits for this rank's thread; what was not published stays behind as a temporary directory.
  ~Writer();

  // Takes host memory for a copy of the pieces now, so that the first save does not; bytes of it.
  absl::StatusOr<int64_t> ReserveStaging(std::span<const TensorPiece> pieces);

  // Starts saving. All ranks' pieces together must tile every tensor exactly once. info.id is made
  // here. With `async` the tensors may change once AwaitCopy returns; without, when this does. An
  // error means that nothing is in flight. Collective.
  absl::Status Begin(CheckpointInfo info, std::span<const TensorPiece> pieces);
  // Returns when the tensors of a save in flight, if there is one, have been copied.
  void AwaitCopy();
  bool in_flight() const { return job_ != nullptr; }
  // True if Advance would not wait for this rank's thread.
  bool LocalDone() const;
  // The next part of a save, twice: collects hashes, whereupon rank 0's thread writes index and
  // manifest, renames, and deletes what retention does not keep; then says what was saved. If any
  // rank failed, every rank gets the same error, which names the file and the last good checkpoint
  // (untouched), and the temporary directory is removed. ResourceExhausted if there is no space,
  // Aborted if may_publish refused, else Internal. Collective.
  absl::StatusOr<std::optional<SavedCheckpoint>> Advance();
  // All of that. Collective.
  absl::StatusOr<SavedCheckpoint> Publish();
  // Deletes what retention does not keep, but for the checkpoint in use; warns of what it cannot.
  void DeleteOld(std::string_view in_use) const;

 private:
  struct Job;

  absl::StatusOr<std::string> MakeTemporary(const CheckpointInfo& info) const;
  // Whether pieces are written from a copy: the run goes on meanwhile, or they lie on a GPU.
  bool NeedsCopy(std::span<const TensorPiece> pieces) const;
  // Everything that can fail before the writing begins. Collective.
  absl::Status Prepare(Job& job);
  absl::StatusOr<ShardContent> PlaceShared(const Job& job) const;
  void Write(Job& job);
  absl::StatusOr<std::string> WriteAndDescribe(const Job& job) const;
  absl::StatusOr<ShardContent> WriteShared(const Job& job) const;
  absl::Status Rename() const;
  absl::StatusOr<std::string> PublishAsRoot(
      const std::vector<absl::StatusOr<std::string>>& results) const;

  const std::string root_;
  Communicator& world_;
  const WriterOptions options_;
  ShardContent placed_;  // of the file that several ranks share
  Staging staging_;
  std::unique_ptr<Job> job_;
};

}  // namespace lt2
