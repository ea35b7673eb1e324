// A checkpoint made of tensors that come row by row, in bounded memory.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoints/scan.h"
#include "checkpoints/tensor_stream.h"

namespace lt2 {

struct RowSource {
  std::vector<StoredTensor> tensors;  // their boxes are not looked at
  // The rows of one of them; called once for each, by several threads.
  std::function<std::unique_ptr<RowStream>(size_t tensor)> open;
};

// Makes the checkpoint `to`, which must not exist: info.ranks shards, each with an even share of
// the rows of every tensor; 1: everything in one file. info.id and info.code are made here.
// Published by rename, as a save is: `to` is whole or absent. Returns the bytes of all its files.
// InvalidArgument if `to` exists; else what a stream says, or ResourceExhausted or Internal naming
// a file.
absl::StatusOr<int64_t> WriteCheckpoint(const std::string& to, CheckpointInfo info,
                                        const RowSource& source, const ScanOptions& options = {});

}  // namespace lt2
