// lt2 data inspect: what a folder of token shards holds, and whether it is sound.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace lt2 {

struct ShardReport {
  struct Shard {
    std::string path;
    int64_t tokens = 0, documents = 0, vocab_size = 0;
    std::string dtype;                  // "u16" or "u32"
    int64_t shortest = 0, longest = 0;  // documents, in tokens
    double mean_length = 0;
    int64_t largest_id = 0;
    bool content_ok = false;  // tokens and document starts have the hash the header says
    bool ids_ok = false;      // every id is inside the vocabulary
  };
  std::vector<Shard> shards;
  std::string tokenizer, tokenizer_hash;  // of the first shard
  // The first shard with another tokenizer or vocabulary than the first one's, and which; or "".
  std::string odd_shard, odd_tokenizer;
  int64_t tokens = 0, documents = 0;
  // The first tokens as text where this program has the tokenizer, else their ids.
  std::string preview;

  // OK, or DataLoss / InvalidArgument naming the first shard that is not sound.
  absl::Status Verdict() const;
};

// Reads every token. Errors as Shard::Open and ListShards where a shard cannot be read at all.
absl::StatusOr<ShardReport> InspectShards(const std::string& directory);

}  // namespace lt2
