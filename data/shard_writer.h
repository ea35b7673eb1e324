// Writes documents of token ids as a folder of shards, which appears whole or not at all.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "data/tokenizer.h"

namespace lt2 {

class ShardWriter {
 public:
  struct Options {
    std::string directory;
    int64_t vocab_size = 0;
    std::string tokenizer, tokenizer_hash;
    // A shard is closed before a document that would take it beyond this; a longer document has a
    // shard of its own. Tokens of one shard are held in memory.
    int64_t tokens_per_shard = int64_t{1} << 28;

    static Options For(const Tokenizer& tokenizer, const std::string& directory);
  };

  // InvalidArgument if the folder already holds something, or its name is empty.
  static absl::StatusOr<ShardWriter> Create(const Options& options);
  ShardWriter(ShardWriter&&) = default;

  // An empty document is left out. InvalidArgument for an id outside the vocabulary; a failed write
  // as core/file.h and core/hdf5.h say.
  absl::Status Add(std::span<const int32_t> document);
  // Writes what is left and publishes the folder, which had a temporary name until now.
  // InvalidArgument if there was no document.
  absl::Status Finish();

  // Removes what has been written; for when Finish is not to come or has failed.
  void Discard();

  int64_t tokens() const { return tokens_; }
  int64_t documents() const { return documents_; }
  int64_t shards() const { return shards_; }

 private:
  explicit ShardWriter(const Options& options);
  absl::Status Flush();

  Options options_;
  std::string temporary_;
  std::vector<std::byte> buffer_;
  std::vector<int64_t> starts_;
  int64_t tokens_ = 0, documents_ = 0, shards_ = 0;
};

}  // namespace lt2
