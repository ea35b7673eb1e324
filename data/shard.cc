#include "data/shard.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "core/file.h"
#include "core/hash.h"
#include "core/hdf5.h"
#include "core/status_macros.h"
#include "core/strings.h"

namespace lt2 {
namespace {

absl::Status Damaged(const std::string& path, const std::string& what) {
  return absl::DataLossError(StrCat(path, ": ", what));
}

template <class T>
int64_t Widen(const std::byte* from, int64_t count, int64_t vocab_size, int32_t* ids) {
  T largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    T id;
    std::memcpy(&id, from + i * sizeof(T), sizeof(T));  // files of others may not be aligned
    largest = std::max(largest, id);
    ids[i] = static_cast<int32_t>(id);
  }
  if (static_cast<int64_t>(largest) < vocab_size) return -1;
  for (int64_t i = 0;; ++i) {
    T id;
    std::memcpy(&id, from + i * sizeof(T), sizeof(T));
    if (static_cast<int64_t>(id) >= vocab_size) return i;
  }
}

// What a shard lacks is damage, not a wrong path.
absl::Status Lacking(const absl::Status& status) {
  if (!absl::IsNotFound(status)) return status;
  return absl::DataLossError(status.message());
}

absl::StatusOr<ShardHeader> ReadHeader(const h5::File& file) {
  const absl::StatusOr<int64_t> version = file.IntAttribute("/", "format_version");
  if (absl::IsNotFound(version.status())) {
    return absl::InvalidArgumentError(
        StrCat(file.path(),
               ": is an HDF5 file, but not a token shard (no format_version); "
               "make shards with lt2 data tokenize"));
  }
  RETURN_IF_ERROR(version.status());
  if (*version != ShardHeader::kVersion) {
    return absl::InvalidArgumentError(StrCat(file.path(), ": token shard of format version ",
                                             *version, "; this program reads version ",
                                             ShardHeader::kVersion));
  }
  ShardHeader header;
  const auto number = [&](const char* name, int64_t* value) {
    const absl::StatusOr<int64_t> read = file.IntAttribute("/", name);
    if (read.ok()) *value = *read;
    return Lacking(read.status());
  };
  const auto text = [&](const char* name, std::string* value) {
    absl::StatusOr<std::string> read = file.StringAttribute("/", name);
    if (read.ok()) *value = *std::move(read);
    return Lacking(read.status());
  };
  RETURN_IF_ERROR(number("vocab_size", &header.vocab_size));
  RETURN_IF_ERROR(text("tokenizer", &header.tokenizer));
  RETURN_IF_ERROR(text("tokenizer_hash", &header.tokenizer_hash));
  RETURN_IF_ERROR(number("tokens", &header.tokens));
  RETURN_IF_ERROR(number("documents", &header.documents));
  RETURN_IF_ERROR(text("content_hash", &header.content_hash));
  if (header.vocab_size < 1 || header.vocab_size > std::numeric_limits<int32_t>::max()) {
    return Damaged(file.path(), StrCat("vocab_size is ", header.vocab_size));
  }
  return header;
}

// The dataset's bytes in the map, after checking its description against the header.
absl::StatusOr<std::span<const std::byte>> Locate(const h5::File& file, const std::string& name,
                                                  h5::Type type, int64_t count,
                                                  std::span<const std::byte> map) {
  const absl::StatusOr<h5::DatasetInfo> found = file.Info(name);
  RETURN_IF_ERROR(Lacking(found.status()));
  const h5::DatasetInfo& info = *found;
  if (info.type != type || info.shape != Shape{count} || info.offset < 0) {
    return Damaged(file.path(),
                   StrCat("dataset '", name, "' is not a contiguous list of ", count,
                          " numbers of ", h5::SizeOf(type), " bytes, as the header says"));
  }
  const int64_t width = h5::SizeOf(type), size = static_cast<int64_t>(map.size());
  if (info.offset > size || count > (size - info.offset) / width) {
    return Damaged(file.path(),
                   StrCat("truncated: '", name, "' needs ", count, " numbers of ", width,
                          " bytes from offset ", info.offset, ", the file ends at ", size));
  }
  return map.subspan(info.offset, count * width);
}

}  // namespace

int TokenWidth(int64_t vocab_size) { return vocab_size <= 65536 ? 2 : 4; }

std::string ContentHash(std::span<const std::byte> tokens, std::span<const int64_t> starts) {
  const std::string both = StrCat(Hash128(tokens), Hash128(std::as_bytes(starts)));
  return Hash128(std::as_bytes(std::span(both)));
}

int64_t WidenTokens(const std::byte* from, int width, int64_t count, int64_t vocab_size,
                    int32_t* ids) {
  switch (width) {
    case 1:
      return Widen<uint8_t>(from, count, vocab_size, ids);
    case 2:
      return Widen<uint16_t>(from, count, vocab_size, ids);
    default:
      return Widen<uint32_t>(from, count, vocab_size, ids);
  }
}

absl::StatusOr<Shard> Shard::Open(const std::string& path) {
  ASSIGN_OR_RETURN(const h5::File file, h5::File::Open(path));
  Shard shard;
  shard.path_ = path;
  ASSIGN_OR_RETURN(shard.header_, ReadHeader(file));
  const ShardHeader& header = shard.header_;
  if (header.tokens < 1 || header.documents < 1) {
    return Damaged(path, StrCat("empty shard: ", header.tokens, " tokens in ", header.documents,
                                " documents"));
  }
  ASSIGN_OR_RETURN(shard.file_, MappedFile::Open(path));
  const std::span<const std::byte> map = shard.file_.bytes();
  const h5::Type type = shard.width() == 2 ? h5::Type::kU16 : h5::Type::kU32;
  ASSIGN_OR_RETURN(shard.tokens_, Locate(file, "tokens", type, header.tokens, map));
  shard.offset_ = shard.tokens_.data() - map.data();

  ASSIGN_OR_RETURN(const std::span<const std::byte> starts,
                   Locate(file, "document_starts", h5::Type::kI64, header.documents, map));
  if (reinterpret_cast<uintptr_t>(starts.data()) % alignof(int64_t) == 0) {
    shard.starts_ = {reinterpret_cast<const int64_t*>(starts.data()),
                     static_cast<size_t>(header.documents)};
  } else {
    shard.starts_storage_.resize(header.documents);
    std::memcpy(shard.starts_storage_.data(), starts.data(), starts.size());
    shard.starts_ = shard.starts_storage_;
  }
  int64_t previous = -1;
  for (const int64_t start : shard.starts_) {
    if (start <= previous || start >= header.tokens || (previous == -1 && start != 0)) {
      return Damaged(path, StrCat("document_starts must begin with 0 and increase below ",
                                  header.tokens, "; it has ", start, " after ", previous));
    }
    previous = start;
  }
  return shard;
}

absl::StatusOr<std::vector<std::string>> ListShards(const std::string& directory) {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, FileSystem::Get().List(directory));
  std::vector<std::string> paths;
  for (const std::string& name : names) {
    if (name.ends_with(".h5")) paths.push_back(JoinPath(directory, name));
  }
  if (paths.empty()) {
    return absl::InvalidArgumentError(
        StrCat(directory, ": holds no token shards (*.h5); make them with lt2 data tokenize"));
  }
  return paths;
}

}  // namespace lt2
