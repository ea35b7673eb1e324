#include "checkpoints/reshard.h"

#include "checkpoints/write_rows.h"

namespace lt2 {

absl::StatusOr<int64_t> Reshard(const Checkpoint& from, const std::string& to, int files,
                                const ScanOptions& options) {
  const std::vector<StoredTensor>& tensors = from.manifest().tensors;
  CheckpointInfo info = from.info();
  info.ranks = files;
  const auto open = [&](size_t i) {
    return std::make_unique<TensorStream>(from, tensors[i], RowsAtATime(tensors[i]));
  };
  return WriteCheckpoint(to, std::move(info), {.tensors = tensors, .open = open}, options);
}

}  // namespace lt2
