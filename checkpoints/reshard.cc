#include "checkpoints/reshard.h"

#include <filesystem>

#include "checkpoints/assemble.h"
#include "checkpoints/tensor_stream.h"
#include "core/file.h"
#include "core/status_macros.h"
#include "core/strings.h"
#include "core/version.h"

namespace lt2 {
namespace {

// Shares of every tensor's rows that differ by one row at most.
ShardContent PlanShare(const Manifest& manifest, int file, int files) {
  ShardContent plan;
  for (const StoredTensor& tensor : manifest.tensors) {
    const int64_t rows = tensor.shape[0];
    const Box share = Box::RowsOf(tensor.shape, rows * file / files, rows * (file + 1) / files);
    if (share.empty()) continue;
    plan.tensors.push_back(tensor);
    plan.tensors.back().boxes = {{.box = share}};
  }
  return plan;
}

// One resharding under way.
class Resharder {
 public:
  Resharder(const Checkpoint& from, std::string directory, CheckpointInfo info)
      : from_(from), directory_(std::move(directory)), info_(std::move(info)) {}

  absl::StatusOr<int64_t> Run(const ScanOptions& options) {
    RETURN_IF_ERROR(FileSystem::Get().MakeDirectories(directory_));
    RETURN_IF_ERROR(CreateShards());
    std::vector<int64_t> bytes;
    for (const StoredTensor& tensor : from_.manifest().tensors) bytes.push_back(tensor.bytes());
    RETURN_IF_ERROR(ForEachItem(
        bytes, options, [&](size_t i) { return Copy(from_.manifest().tensors[i], parts_[i]); }));
    for (const ByteFile& file : files_) RETURN_IF_ERROR(FileSystem::Get().Sync(file.path()));
    return Assemble(directory_, info_, shards_);
  }

 private:
  // Where a box of a tensor goes.
  struct Part {
    const ByteFile* file;
    StoredBox* stored;
  };

  absl::Status CreateShards() {
    const std::vector<StoredTensor>& tensors = from_.manifest().tensors;
    std::map<std::string, size_t> index;
    for (size_t i = 0; i < tensors.size(); ++i) index.emplace(tensors[i].path(), i);
    parts_.resize(tensors.size());
    shards_.resize(info_.ranks);
    files_.reserve(info_.ranks);
    for (int r = 0; r < info_.ranks; ++r) {
      shards_[r] = PlanShare(from_.manifest(), r, info_.ranks);
      RETURN_IF_ERROR(CreateShard(directory_, r, info_, shards_[r]));
      ASSIGN_OR_RETURN(ByteFile file, ByteFile::OpenToWrite(JoinPath(directory_, ShardName(r))));
      files_.push_back(std::move(file));
      for (StoredTensor& tensor : shards_[r].tensors) {
        parts_[index.at(tensor.path())].push_back({&files_.back(), &tensor.boxes[0]});
      }
    }
    return absl::OkStatus();
  }

  absl::Status Copy(const StoredTensor& tensor, const std::vector<Part>& parts) const {
    const int64_t row_bytes = tensor.bytes() / std::max<int64_t>(1, tensor.shape[0]);
    std::vector<Hasher128> hashers(parts.size());
    TensorStream stream(from_, tensor, RowsAtATime(tensor));
    while (!stream.done()) {
      ASSIGN_OR_RETURN(const TensorRows rows, stream.Next());
      for (size_t i = 0; i < parts.size(); ++i) {
        const StoredBox& stored = *parts[i].stored;
        const std::optional<Box> both = Intersect(rows.box, stored.box);
        if (!both) continue;
        const auto bytes = rows.bytes.subspan((both->begin[0] - rows.box.begin[0]) * row_bytes,
                                              both->extent[0] * row_bytes);
        const int64_t place = (both->begin[0] - stored.box.begin[0]) * row_bytes;
        RETURN_IF_ERROR(parts[i].file->Write(stored.offset + place, bytes));
        hashers[i].Add(bytes);
      }
    }
    for (size_t i = 0; i < parts.size(); ++i) parts[i].stored->hash = hashers[i].Digest();
    return absl::OkStatus();
  }

  const Checkpoint& from_;
  const std::string directory_;
  const CheckpointInfo info_;
  std::vector<ByteFile> files_;
  std::vector<ShardContent> shards_;
  std::vector<std::vector<Part>> parts_;  // by tensor
};

}  // namespace

absl::StatusOr<int64_t> Reshard(const Checkpoint& from, const std::string& to, int files,
                                const ScanOptions& options) {
  CHECK_GT(files, 0);
  FileSystem& system = FileSystem::Get();
  std::string name = to;
  while (name.size() > 1 && name.ends_with('/')) name.pop_back();
  if (system.Exists(name)) {
    return absl::InvalidArgumentError(StrCat(name, ": exists already; choose another name"));
  }
  CheckpointInfo info = from.info();
  info.id = MakeCheckpointId(info.id, info.step);
  info.ranks = files;
  info.code = GitCommit();
  const std::string temporary = StrCat(name, ".tmp-", info.id);
  absl::StatusOr<int64_t> bytes = Resharder(from, temporary, std::move(info)).Run(options);
  if (bytes.ok()) {
    if (absl::Status renamed = system.Rename(temporary, name); !renamed.ok()) bytes = renamed;
  }
  if (!bytes.ok()) {
    system.RemoveAll(temporary).IgnoreError();  // the first failure is the one to tell
    return bytes;
  }
  const std::string parent = std::filesystem::path(name).parent_path();
  RETURN_IF_ERROR(system.Sync(parent.empty() ? "." : parent));
  return bytes;
}

}  // namespace lt2
