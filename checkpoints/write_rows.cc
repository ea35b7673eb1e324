#include "checkpoints/write_rows.h"

#include <algorithm>
#include <map>

#include "checkpoints/assemble.h"
#include "checkpoints/publish.h"
#include "core/file.h"
#include "core/status_macros.h"
#include "core/strings.h"
#include "core/version.h"

namespace lt2 {
namespace {

// Shares of every tensor's rows that differ by one row at most.
ShardContent PlanShare(const std::vector<StoredTensor>& tensors, int file, int files) {
  ShardContent plan;
  for (const StoredTensor& tensor : tensors) {
    const int64_t rows = tensor.shape[0];
    const Box share = Box::RowsOf(tensor.shape, rows * file / files, rows * (file + 1) / files);
    if (share.empty()) continue;
    plan.tensors.push_back(tensor);
    plan.tensors.back().boxes = {{.box = share}};
  }
  return plan;
}

// One checkpoint under way.
class RowWriter {
 public:
  RowWriter(std::string directory, const CheckpointInfo& info, const RowSource& source)
      : directory_(std::move(directory)), info_(info), source_(source) {}

  absl::StatusOr<int64_t> Run(const ScanOptions& options) {
    RETURN_IF_ERROR(CreateShards());
    std::vector<int64_t> bytes;
    for (const StoredTensor& tensor : source_.tensors) bytes.push_back(tensor.bytes());
    RETURN_IF_ERROR(ForEachItem(bytes, options, [&](size_t i) { return Copy(i); }));
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
    std::map<std::string, size_t> index;
    for (size_t i = 0; i < source_.tensors.size(); ++i) {
      index.emplace(source_.tensors[i].path(), i);
    }
    parts_.resize(source_.tensors.size());
    shards_.resize(info_.ranks);
    files_.reserve(info_.ranks);
    for (int r = 0; r < info_.ranks; ++r) {
      shards_[r] = PlanShare(source_.tensors, r, info_.ranks);
      RETURN_IF_ERROR(CreateShard(directory_, r, info_, shards_[r]));
      ASSIGN_OR_RETURN(ByteFile file, ByteFile::OpenToWrite(JoinPath(directory_, ShardName(r))));
      files_.push_back(std::move(file));
      for (StoredTensor& tensor : shards_[r].tensors) {
        parts_[index.at(tensor.path())].push_back({&files_.back(), &tensor.boxes[0]});
      }
    }
    return absl::OkStatus();
  }

  absl::Status Copy(size_t i) const {
    const StoredTensor& tensor = source_.tensors[i];
    const std::vector<Part>& parts = parts_[i];
    const int64_t row_bytes = tensor.bytes() / std::max<int64_t>(1, tensor.shape[0]);
    std::vector<Hasher128> hashers(parts.size());
    const std::unique_ptr<RowStream> stream = source_.open(i);
    while (!stream->done()) {
      ASSIGN_OR_RETURN(const TensorRows rows, stream->Next());
      for (size_t p = 0; p < parts.size(); ++p) {
        const StoredBox& stored = *parts[p].stored;
        const std::optional<Box> both = Intersect(rows.box, stored.box);
        if (!both) continue;
        const auto bytes = rows.bytes.subspan((both->begin[0] - rows.box.begin[0]) * row_bytes,
                                              both->extent[0] * row_bytes);
        const int64_t place = (both->begin[0] - stored.box.begin[0]) * row_bytes;
        RETURN_IF_ERROR(parts[p].file->Write(stored.offset + place, bytes));
        hashers[p].Add(bytes);
      }
    }
    for (size_t p = 0; p < parts.size(); ++p) parts[p].stored->hash = hashers[p].Digest();
    return absl::OkStatus();
  }

  const std::string directory_;
  const CheckpointInfo& info_;
  const RowSource& source_;
  std::vector<ByteFile> files_;
  std::vector<ShardContent> shards_;
  std::vector<std::vector<Part>> parts_;  // by tensor
};

}  // namespace

absl::StatusOr<int64_t> WriteCheckpoint(const std::string& to, CheckpointInfo info,
                                        const RowSource& source, const ScanOptions& options) {
  CHECK_GT(info.ranks, 0);
  info.id = MakeCheckpointId(StrCat(info.id, to), info.step);
  info.code = GitCommit();
  absl::StatusOr<int64_t> bytes;
  RETURN_IF_ERROR(PublishFolder(to, info.id, [&](const std::string& folder) {
    bytes = RowWriter(folder, info, source).Run(options);
    return bytes.status();
  }));
  return bytes;
}

}  // namespace lt2
