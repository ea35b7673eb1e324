// Text to token ids and back.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace lt2 {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Appends the ids of `text`, each in [0, vocab_size()).
  virtual void Encode(std::string_view text, std::vector<int32_t>* ids) const = 0;
  // The bytes that `ids` stand for: InvalidArgument names an id outside the vocabulary. Pieces of a
  // text may end inside a character.
  virtual absl::StatusOr<std::string> Decode(std::span<const int32_t> ids) const = 0;

  virtual int64_t vocab_size() const = 0;
  virtual const std::string& name() const = 0;
  // 32 hexadecimal digits that stay the same as long as every text gets the same ids.
  virtual const std::string& hash() const = 0;

  std::vector<int32_t> Encode(std::string_view text) const {
    std::vector<int32_t> ids;
    Encode(text, &ids);
    return ids;
  }
};

// The tokenizer a configuration names: "bytes". InvalidArgument for any other, or if it has more
// tokens than the vocabulary of a model for which it is meant.
absl::StatusOr<std::unique_ptr<Tokenizer>> MakeTokenizer(const std::string& name,
                                                         int64_t model_vocab = 0);

}  // namespace lt2
