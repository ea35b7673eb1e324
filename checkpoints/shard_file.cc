#include "checkpoints/shard_file.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "core/file.h"
#include "core/hash.h"
#include "core/status_macros.h"
#include "core/strings.h"

namespace lt2 {
namespace {

std::string DatasetName(const CheckpointInfo& info, const TensorPiece& piece, bool several) {
  std::string name = StrCat(info.id, "/", piece.path());
  if (several) StrAppend(&name, "@", absl::StrJoin(piece.box.begin, ","));
  return name;
}

// How many of the rank's boxes belong to each tensor.
std::map<std::string, int> BoxesPerTensor(std::span<const TensorPiece> pieces) {
  std::map<std::string, int> count;
  for (const TensorPiece& piece : pieces) count[piece.path()] += !piece.box.empty();
  return count;
}

// The entry of the piece's tensor, made if it is the first.
StoredTensor& EntryOf(std::vector<StoredTensor>& tensors, const TensorPiece& piece) {
  for (StoredTensor& tensor : tensors) {
    if (tensor.group == piece.group && tensor.name == piece.name) return tensor;
  }
  tensors.push_back({.group = piece.group,
                     .name = piece.name,
                     .dtype = piece.tensor.dtype(),
                     .shape = piece.shape,
                     .boxes = {}});
  return tensors.back();
}

absl::Status Identify(h5::File& file, const CheckpointInfo& info, int rank) {
  RETURN_IF_ERROR(file.SetAttribute("/", "checkpoint", info.id));
  RETURN_IF_ERROR(file.SetAttribute("/", "format", int64_t{kCheckpointFormat}));
  RETURN_IF_ERROR(file.SetAttribute("/", "step", info.step));
  return file.SetAttribute("/", "rank", int64_t{rank});
}

absl::StatusOr<StoredBox> WriteBox(h5::File& file, const std::string& shard,
                                   const std::string& dataset, const TensorPiece& piece,
                                   const std::byte* data) {
  CHECK_EQ(piece.tensor.size(), piece.box.size()) << piece.path();
  RETURN_IF_ERROR(file.Write(dataset, H5Type(piece.tensor.dtype()), piece.box.extent, data));
  ASSIGN_OR_RETURN(const h5::DatasetInfo info, file.Info(dataset));
  if (info.offset < 0) {
    return absl::InternalError(
        StrCat(file.path(), ": ", dataset, " was not stored in one contiguous piece"));
  }
  return StoredBox{
      .file = shard,
      .dataset = dataset,
      .offset = info.offset,
      .box = piece.box,
      .hash = Hash128({data, static_cast<size_t>(piece.tensor.bytes())}),
  };
}

absl::StatusOr<StoredFile> Describe(const std::string& directory, const std::string& name,
                                    std::span<const StoredTensor> tensors) {
  std::vector<ByteRange> ranges;
  for (const StoredTensor& tensor : tensors) {
    for (const StoredBox& stored : tensor.boxes) {
      ranges.push_back({stored.offset, stored.box.size() * SizeOf(tensor.dtype)});
    }
  }
  std::sort(ranges.begin(), ranges.end(),
            [](const ByteRange& a, const ByteRange& b) { return a.offset < b.offset; });
  ASSIGN_OR_RETURN(const ByteFile file, ByteFile::Open(JoinPath(directory, name)));
  ASSIGN_OR_RETURN(std::string frame, FrameHash(file, ranges));
  return StoredFile{.name = name, .bytes = file.size(), .frame = std::move(frame)};
}

}  // namespace

std::string ShardName(int rank) { return absl::StrFormat("shard-%05d.h5", rank); }

absl::StatusOr<ShardContent> WriteShard(const std::string& directory, int rank,
                                        const CheckpointInfo& info,
                                        std::span<const TensorPiece> pieces,
                                        std::span<const std::byte* const> data) {
  CHECK_EQ(pieces.size(), data.size());
  const std::string name = ShardName(rank);
  const std::string path = JoinPath(directory, name);
  ShardContent content;
  const std::map<std::string, int> count = BoxesPerTensor(pieces);

  ASSIGN_OR_RETURN(h5::File file, h5::File::Create(path));
  RETURN_IF_ERROR(Identify(file, info, rank));
  for (size_t i = 0; i < pieces.size(); ++i) {
    const TensorPiece& piece = pieces[i];
    if (piece.box.empty()) continue;
    const std::string dataset = DatasetName(info, piece, count.at(piece.path()) > 1);
    ASSIGN_OR_RETURN(StoredBox stored, WriteBox(file, name, dataset, piece, data[i]));
    EntryOf(content.tensors, piece).boxes.push_back(std::move(stored));
  }
  RETURN_IF_ERROR(file.Close());
  RETURN_IF_ERROR(FileSystem::Get().Sync(path));
  ASSIGN_OR_RETURN(content.file, Describe(directory, name, content.tensors));
  return content;
}

absl::Status VerifyShard(const std::string& directory, const ShardContent& content) {
  ASSIGN_OR_RETURN(const ByteFile file, ByteFile::Open(JoinPath(directory, content.file.name)));
  file.DropCache();
  std::vector<std::byte> bytes;
  for (const StoredTensor& tensor : content.tensors) {
    for (const StoredBox& stored : tensor.boxes) {
      bytes.resize(stored.box.size() * SizeOf(tensor.dtype));
      RETURN_IF_ERROR(ReadStoredBox(file, tensor, stored, bytes));
    }
  }
  return absl::OkStatus();
}

std::string ToJson(const ShardContent& content) {
  return nlohmann::json{{"file", content.file}, {"tensors", content.tensors}}.dump();
}

absl::StatusOr<ShardContent> ParseShardContent(std::string_view text) {
  try {
    const nlohmann::json json = nlohmann::json::parse(text);
    return ShardContent{.file = json.at("file"), .tensors = json.at("tensors")};
  } catch (const std::exception& error) {
    return absl::InternalError(StrCat("a rank's list of stored boxes: ", error.what()));
  }
}

absl::StatusOr<Manifest> MergeShards(const CheckpointInfo& info,
                                     std::span<const ShardContent> shards) {
  Manifest manifest{.info = info, .files = {}, .tensors = {}};
  std::map<std::string, size_t> index;
  for (const ShardContent& shard : shards) {
    manifest.files.push_back(shard.file);
    for (const StoredTensor& part : shard.tensors) {
      const auto [at, is_new] = index.emplace(part.path(), manifest.tensors.size());
      if (is_new) {
        manifest.tensors.push_back(part);
        continue;
      }
      StoredTensor& whole = manifest.tensors[at->second];
      if (whole.shape != part.shape || whole.dtype != part.dtype) {
        return absl::InternalError(StrCat(part.path(), ": ", shard.file.name, " holds it as ",
                                          Name(part.dtype), " ", part.shape.ToString(),
                                          ", an earlier rank as ", Name(whole.dtype), " ",
                                          whole.shape.ToString()));
      }
      whole.boxes.insert(whole.boxes.end(), part.boxes.begin(), part.boxes.end());
    }
  }
  std::sort(manifest.tensors.begin(), manifest.tensors.end(),
            [](const StoredTensor& a, const StoredTensor& b) { return a.path() < b.path(); });
  for (const StoredTensor& tensor : manifest.tensors) {
    const absl::Status tiling = CheckTiling(tensor);
    if (!tiling.ok()) return absl::InternalError(tiling.message());
  }
  return manifest;
}

absl::Status ReadStoredBox(const ByteFile& file, const StoredTensor& tensor,
                           const StoredBox& stored, std::span<std::byte> to) {
  CHECK_EQ(static_cast<int64_t>(to.size()), stored.box.size() * SizeOf(tensor.dtype));
  RETURN_IF_ERROR(file.Read(stored.offset, to));
  if (Hash128(to) == stored.hash) return absl::OkStatus();
  return absl::DataLossError(StrCat(file.path(), ": ", tensor.path(), " ", stored.box.ToString(),
                                    " at byte ", stored.offset, " does not match its hash"));
}

h5::Type H5Type(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return h5::Type::kF64;
    case DType::kF32:
      return h5::Type::kF32;
    case DType::kBF16:
      return h5::Type::kU16;
    case DType::kI32:
      return h5::Type::kI32;
    case DType::kU8:
      return h5::Type::kU8;
  }
  return h5::Type::kOther;
}

}  // namespace lt2
