// A token shard: one HDF5 file of FORMAT.md, checked once and then mapped.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "data/mapped_file.h"

namespace lt2 {

struct ShardHeader {
  static constexpr int64_t kVersion = 1;
  int64_t vocab_size = 0;
  std::string tokenizer, tokenizer_hash;  // 32 hexadecimal digits
  int64_t tokens = 0, documents = 0;
  std::string content_hash;  // ContentHash of the two datasets
};

// Bytes an id takes in a shard: 2 for vocabularies up to 65536, else 4.
int TokenWidth(int64_t vocab_size);

// What the header records of the content: a 128-bit hash over the tokens' bytes as stored and the
// document starts.
std::string ContentHash(std::span<const std::byte> tokens, std::span<const int64_t> starts);

// `count` ids of `width` bytes each (1, 2 or 4), little-endian, widened to `ids`. Returns the
// position of the first id that is `vocab_size` or more, or -1.
int64_t WidenTokens(const std::byte* from, int width, int64_t count, int64_t vocab_size,
                    int32_t* ids);

class Shard {
 public:
  // NotFound; DataLoss naming the file (and offset) where it is truncated, damaged or empty;
  // InvalidArgument where it is HDF5 but not a shard of a version this program knows.
  static absl::StatusOr<Shard> Open(const std::string& path);

  const std::string& path() const { return path_; }
  const ShardHeader& header() const { return header_; }
  int width() const { return TokenWidth(header_.vocab_size); }
  // Ids as stored; the address stays when the object moves.
  std::span<const std::byte> token_bytes() const { return tokens_; }
  // Strictly increasing, the first is 0.
  std::span<const int64_t> document_starts() const { return starts_; }
  // Where the tokens lie in the file, in bytes.
  int64_t offset() const { return offset_; }

 private:
  std::string path_;
  ShardHeader header_;
  MappedFile file_;
  std::vector<int64_t> starts_storage_;  // where the file's own are not aligned
  std::span<const std::byte> tokens_;
  std::span<const int64_t> starts_;
  int64_t offset_ = 0;
};

// Paths of the shards in a folder, by name. NotFound if it does not exist, InvalidArgument if it
// holds no *.h5 file.
absl::StatusOr<std::vector<std::string>> ListShards(const std::string& directory);

}  // namespace lt2
