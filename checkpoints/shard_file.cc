#include "checkpoints/shard_file.h"

#include <algorithm>
#include <future>
#include <map>
#include <set>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "core/file.h"
#include "core/hash.h"
#include "core/status_macros.h"
#include "core/strings.h"

namespace lt2 {
namespace {

std::string DatasetName(const CheckpointInfo& info, const StoredTensor& tensor, const Box& box) {
  std::string name = StrCat(info.id, "/", tensor.path());
  if (tensor.boxes.size() > 1) StrAppend(&name, "@", absl::StrJoin(box.begin, ","));
  return name;
}

// Finds tensors by path as they are added.
class TensorList {
 public:
  explicit TensorList(std::vector<StoredTensor>& tensors) : tensors_(tensors) {
    for (size_t i = 0; i < tensors.size(); ++i) index_.emplace(tensors[i].path(), i);
  }
  // The entry of `like`'s tensor, made without boxes if it is the first.
  StoredTensor& Entry(const StoredTensor& like) {
    const auto [at, is_new] = index_.emplace(like.path(), tensors_.size());
    if (is_new) {
      tensors_.push_back(like);
      tensors_.back().boxes.clear();
    }
    return tensors_[at->second];
  }

 private:
  std::vector<StoredTensor>& tensors_;
  std::map<std::string, size_t> index_;
};

StoredTensor TensorOf(const TensorPiece& piece) {
  return {.group = piece.group,
          .name = piece.name,
          .dtype = piece.tensor.dtype(),
          .shape = piece.shape,
          .boxes = {}};
}

absl::Status Identify(h5::File& file, const CheckpointInfo& info, int rank) {
  RETURN_IF_ERROR(file.SetAttribute("/", "checkpoint", info.id));
  RETURN_IF_ERROR(file.SetAttribute("/", "format", int64_t{kCheckpointFormat}));
  RETURN_IF_ERROR(file.SetAttribute("/", "step", info.step));
  return file.SetAttribute("/", "rank", int64_t{rank});
}

// Makes room for a box in the file and notes where.
absl::Status Place(h5::File& file, const std::string& dataset, const StoredTensor& tensor,
                   StoredBox& stored) {
  RETURN_IF_ERROR(file.CreateDataset(dataset, H5Type(tensor.dtype), stored.box.extent));
  ASSIGN_OR_RETURN(const h5::DatasetInfo info, file.Info(dataset));
  if (info.offset < 0) {
    return absl::InternalError(
        StrCat(file.path(), ": ", dataset, " did not get one contiguous place"));
  }
  stored.dataset = dataset;
  stored.offset = info.offset;
  return absl::OkStatus();
}

std::vector<ByteRange> RangesOf(std::span<const StoredTensor> tensors) {
  std::vector<ByteRange> ranges;
  for (const StoredTensor& tensor : tensors) {
    for (const StoredBox& stored : tensor.boxes) {
      ranges.push_back({stored.offset, stored.box.size() * SizeOf(tensor.dtype)});
    }
  }
  std::sort(ranges.begin(), ranges.end(),
            [](const ByteRange& a, const ByteRange& b) { return a.offset < b.offset; });
  return ranges;
}

// Makes the file of shard `rank` at `path`.
absl::Status CreateAt(const std::string& path, int rank, const CheckpointInfo& info,
                      ShardContent& plan) {
  ASSIGN_OR_RETURN(h5::File file, h5::File::Create(path));
  RETURN_IF_ERROR(Identify(file, info, rank));
  for (StoredTensor& tensor : plan.tensors) {
    for (StoredBox& stored : tensor.boxes) {
      stored.file = ShardName(rank);
      RETURN_IF_ERROR(Place(file, DatasetName(info, tensor, stored.box), tensor, stored));
    }
  }
  RETURN_IF_ERROR(file.Close());
  ASSIGN_OR_RETURN(const ByteFile made, ByteFile::Open(path));
  ASSIGN_OR_RETURN(std::string frame, FrameHash(made, RangesOf(plan.tensors)));
  plan.file = {.name = ShardName(rank), .bytes = made.size(), .frame = std::move(frame)};
  return absl::OkStatus();
}

// Where a shard's frame is made before it goes to its place.
std::string Aside(const std::string& directory, int rank) {
  return JoinPath(directory, StrCat(ShardName(rank), ".frame"));
}

}  // namespace

std::string ShardName(int rank) { return absl::StrFormat("shard-%05d.h5", rank); }

ShardContent PlanShard(std::span<const TensorPiece> pieces) {
  ShardContent plan;
  TensorList tensors(plan.tensors);
  for (const TensorPiece& piece : pieces) {
    CHECK_EQ(piece.tensor.size(), piece.box.size()) << piece.path();
    if (!piece.box.empty()) tensors.Entry(TensorOf(piece)).boxes.push_back({.box = piece.box});
  }
  return plan;
}

void AddTo(ShardContent& plan, const ShardContent& other) {
  TensorList tensors(plan.tensors);
  for (const StoredTensor& tensor : other.tensors) {
    std::vector<StoredBox>& boxes = tensors.Entry(tensor).boxes;
    boxes.insert(boxes.end(), tensor.boxes.begin(), tensor.boxes.end());
  }
}

absl::Status CreateShard(const std::string& directory, int rank, const CheckpointInfo& info,
                         ShardContent& plan) {
  return CreateAt(JoinPath(directory, ShardName(rank)), rank, info, plan);
}

absl::Status PlaceBoxes(const std::string& directory, int rank, ShardContent& plan) {
  // Ids are of one length, and nothing else of a checkpoint changes its files' structure.
  const CheckpointInfo any{.id = std::string(16, '0')};
  RETURN_IF_ERROR(CreateAt(Aside(directory, rank), rank, any, plan));
  return FileSystem::Get().RemoveAll(Aside(directory, rank));
}

absl::StatusOr<StoredFile> WriteFrame(const std::string& directory, int rank,
                                      const CheckpointInfo& info, const ShardContent& placed) {
  const std::string aside = Aside(directory, rank);
  ShardContent made = placed;
  RETURN_IF_ERROR(CreateAt(aside, rank, info, made));
  const std::vector<ByteRange> ranges = RangesOf(made.tensors);
  if (ranges != RangesOf(placed.tensors) || made.file.bytes != placed.file.bytes) {
    return absl::InternalError(StrCat(aside, ": boxes have other places than planned"));
  }
  ASSIGN_OR_RETURN(const ByteFile from, ByteFile::Open(aside));
  ASSIGN_OR_RETURN(const ByteFile to, ByteFile::OpenToWrite(JoinPath(directory, made.file.name)));
  RETURN_IF_ERROR(CopyFrame(from, ranges, to));
  RETURN_IF_ERROR(FileSystem::Get().RemoveAll(aside));
  return made.file;
}

absl::StatusOr<ShardContent> WriteBoxes(const std::string& directory, const CheckpointInfo& info,
                                        const ShardContent& placed,
                                        std::span<const TensorPiece> pieces,
                                        std::span<const std::byte* const> data) {
  CHECK_EQ(pieces.size(), data.size());
  std::map<std::string, const StoredTensor*> all;
  for (const StoredTensor& tensor : placed.tensors) all.emplace(tensor.path(), &tensor);
  ShardContent written{.file = placed.file, .tensors = {}};
  TensorList tensors(written.tensors);
  const std::string path = JoinPath(directory, placed.file.name);
  ASSIGN_OR_RETURN(const ByteFile file, ByteFile::OpenToWrite(path));
  for (size_t i = 0; i < pieces.size(); ++i) {
    const TensorPiece& piece = pieces[i];
    if (piece.box.empty()) continue;
    const StoredTensor& tensor = *all.at(piece.path());
    const auto place = std::find_if(tensor.boxes.begin(), tensor.boxes.end(),
                                    [&](const StoredBox& box) { return box.box == piece.box; });
    CHECK(place != tensor.boxes.end()) << piece.path() << " " << piece.box.ToString();
    const std::span bytes(data[i], static_cast<size_t>(piece.tensor.bytes()));
    // Beside the writing, which takes as long.
    std::future<std::string> hash =
        std::async(std::launch::async, [bytes] { return Hash128(bytes); });
    RETURN_IF_ERROR(file.Write(place->offset, bytes));
    StoredBox stored = *place;
    stored.dataset = DatasetName(info, tensor, stored.box);
    stored.hash = hash.get();
    tensors.Entry(TensorOf(piece)).boxes.push_back(std::move(stored));
  }
  RETURN_IF_ERROR(FileSystem::Get().Sync(path));
  return written;
}

absl::StatusOr<ShardContent> WriteShard(const std::string& directory, int rank,
                                        const CheckpointInfo& info,
                                        std::span<const TensorPiece> pieces,
                                        std::span<const std::byte* const> data) {
  ShardContent shard = PlanShard(pieces);
  RETURN_IF_ERROR(CreateShard(directory, rank, info, shard));
  return WriteBoxes(directory, info, shard, pieces, data);
}

absl::Status VerifyShard(const std::string& directory, const ShardContent& content) {
  ASSIGN_OR_RETURN(const ByteFile file, ByteFile::Open(JoinPath(directory, content.file.name)));
  file.DropCache();
  for (const StoredTensor& tensor : content.tensors) {
    for (const StoredBox& stored : tensor.boxes) {
      RETURN_IF_ERROR(CheckStoredBox(file, tensor, stored));
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
  std::set<std::string> files;
  for (const ShardContent& shard : shards) {
    if (files.insert(shard.file.name).second) manifest.files.push_back(shard.file);
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

absl::Status CheckStoredBox(const ByteFile& file, const StoredTensor& tensor,
                            const StoredBox& stored) {
  Hasher128 hasher;
  RETURN_IF_ERROR(
      HashRange(file, {stored.offset, stored.box.size() * SizeOf(tensor.dtype)}, hasher));
  return CheckHash(file, tensor, stored, hasher.Digest());
}

absl::Status CheckHash(const ByteFile& file, const StoredTensor& tensor, const StoredBox& stored,
                       const std::string& hash) {
  if (hash == stored.hash) return absl::OkStatus();
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
