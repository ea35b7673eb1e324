// What saving and loading a checkpoint takes, beside what the disk does.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "parallel/communicator.h"

namespace lt2 {

// Medians over repeats. Rates are of all ranks together, in bytes per second.
struct CheckpointTiming {
  int64_t bytes = 0;
  double stall_s = 0;  // of rank 0: calls of the writer, with all of the copy
  double save_s = 0;   // from the beginning to the published checkpoint
  double disk_s = 0;   // the same bytes into plain files, one a rank, and synced
  double load_s = 0;   // every rank its own pieces, hashes compared; from the page cache, it may be
  double save_rate() const { return static_cast<double>(bytes) / save_s; }
  double disk_rate() const { return static_cast<double>(bytes) / disk_s; }
  double load_rate() const { return static_cast<double>(bytes) / load_s; }
};

// Saves `bytes` of every rank, as 64 tensors on `device`, into a folder of its own under `folder`,
// which is removed. Collective. An error where the folder cannot be written.
absl::StatusOr<CheckpointTiming> BenchCheckpoint(const std::string& folder, int64_t bytes,
                                                 Device device, int repeats, Communicator& world);

}  // namespace lt2
