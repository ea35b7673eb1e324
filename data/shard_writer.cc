#include "data/shard_writer.h"

#include <cstring>
#include <filesystem>

#include "absl/strings/str_format.h"
#include "core/check.h"
#include "core/file.h"
#include "core/hdf5.h"
#include "core/status_macros.h"
#include "core/strings.h"
#include "data/shard.h"

namespace lt2 {
namespace {

template <class T>
void Append(std::span<const int32_t> ids, std::vector<std::byte>* buffer) {
  size_t at = buffer->size();
  buffer->resize(at + ids.size() * sizeof(T));
  for (const int32_t id : ids) {
    const T narrow = static_cast<T>(id);
    std::memcpy(buffer->data() + at, &narrow, sizeof(T));
    at += sizeof(T);
  }
}

absl::Status WriteShard(const std::string& path, const ShardHeader& header,
                        std::span<const std::byte> tokens, std::span<const int64_t> starts) {
  ASSIGN_OR_RETURN(h5::File file, h5::File::Create(path));
  RETURN_IF_ERROR(file.SetAttribute("/", "format_version", ShardHeader::kVersion));
  RETURN_IF_ERROR(file.SetAttribute("/", "vocab_size", header.vocab_size));
  RETURN_IF_ERROR(file.SetAttribute("/", "tokenizer", header.tokenizer));
  RETURN_IF_ERROR(file.SetAttribute("/", "tokenizer_hash", header.tokenizer_hash));
  RETURN_IF_ERROR(file.SetAttribute("/", "tokens", header.tokens));
  RETURN_IF_ERROR(file.SetAttribute("/", "documents", header.documents));
  RETURN_IF_ERROR(file.SetAttribute("/", "content_hash", header.content_hash));
  const h5::Type type = TokenWidth(header.vocab_size) == 2 ? h5::Type::kU16 : h5::Type::kU32;
  RETURN_IF_ERROR(file.Write("tokens", type, {header.tokens}, tokens.data()));
  RETURN_IF_ERROR(file.Write("document_starts", h5::Type::kI64, {header.documents}, starts.data()));
  RETURN_IF_ERROR(file.Close());
  return FileSystem::Get().Sync(path);
}

}  // namespace

ShardWriter::Options ShardWriter::Options::For(const Tokenizer& tokenizer,
                                               const std::string& directory) {
  Options options;
  options.directory = directory;
  options.vocab_size = tokenizer.vocab_size();
  options.tokenizer = tokenizer.name();
  options.tokenizer_hash = tokenizer.hash();
  return options;
}

ShardWriter::ShardWriter(const Options& options) : options_(options) {
  while (options_.directory.size() > 1 && options_.directory.ends_with('/')) {
    options_.directory.pop_back();
  }
  temporary_ = TemporaryName(options_.directory);
}

absl::StatusOr<ShardWriter> ShardWriter::Create(const Options& options) {
  CHECK_GT(options.vocab_size, 0);
  CHECK_GT(options.tokens_per_shard, 0);
  ShardWriter writer(options);
  FileSystem& files = FileSystem::Get();
  const std::string& directory = writer.options_.directory;
  if (directory.empty()) return absl::InvalidArgumentError("the shards' folder has no name");
  if (files.Exists(directory)) {
    if (!files.IsDirectory(directory)) {
      return absl::InvalidArgumentError(StrCat(directory, ": is a file; name a folder"));
    }
    ASSIGN_OR_RETURN(const std::vector<std::string> names, files.List(directory));
    if (!names.empty()) {
      return absl::InvalidArgumentError(
          StrCat(directory, ": already holds '", names[0], "'; name a new or an empty folder"));
    }
  }
  RETURN_IF_ERROR(files.MakeDirectories(writer.temporary_));
  return writer;
}

absl::Status ShardWriter::Add(std::span<const int32_t> document) {
  if (document.empty()) return absl::OkStatus();
  for (const int32_t id : document) {
    if (id < 0 || id >= options_.vocab_size) {
      return absl::InvalidArgumentError(StrCat("document ", documents_, " has token id ", id,
                                               "; the vocabulary is 0 … ",
                                               options_.vocab_size - 1));
    }
  }
  const int width = TokenWidth(options_.vocab_size);
  const int64_t held = static_cast<int64_t>(buffer_.size()) / width;
  const int64_t length = static_cast<int64_t>(document.size());
  if (held > 0 && held + length > options_.tokens_per_shard) RETURN_IF_ERROR(Flush());
  starts_.push_back(static_cast<int64_t>(buffer_.size()) / width);
  width == 2 ? Append<uint16_t>(document, &buffer_) : Append<uint32_t>(document, &buffer_);
  tokens_ += length;
  ++documents_;
  return absl::OkStatus();
}

absl::Status ShardWriter::Flush() {
  if (starts_.empty()) return absl::OkStatus();
  const ShardHeader header{
      .vocab_size = options_.vocab_size,
      .tokenizer = options_.tokenizer,
      .tokenizer_hash = options_.tokenizer_hash,
      .tokens = static_cast<int64_t>(buffer_.size()) / TokenWidth(options_.vocab_size),
      .documents = static_cast<int64_t>(starts_.size()),
      .content_hash = ContentHash(buffer_, starts_)};
  const std::string name = absl::StrFormat("shard-%05d.h5", shards_);
  RETURN_IF_ERROR(WriteShard(JoinPath(temporary_, name), header, buffer_, starts_));
  ++shards_;
  buffer_.clear();
  starts_.clear();
  return absl::OkStatus();
}

void ShardWriter::Discard() { FileSystem::Get().RemoveAll(temporary_).IgnoreError(); }

absl::Status ShardWriter::Finish() {
  if (documents_ == 0) {
    return absl::InvalidArgumentError("the input holds no text: nothing to write");
  }
  RETURN_IF_ERROR(Flush());
  FileSystem& files = FileSystem::Get();
  RETURN_IF_ERROR(files.Sync(temporary_));
  RETURN_IF_ERROR(files.Rename(temporary_, options_.directory));
  const std::string parent = std::filesystem::path(options_.directory).parent_path().string();
  return files.Sync(parent.empty() ? "." : parent);
}

}  // namespace lt2
