// The identity: every byte is a token, the vocabulary has 256.
#pragma once

#include "data/tokenizer.h"

namespace lt2 {

class ByteTokenizer : public Tokenizer {
 public:
  ByteTokenizer();

  using Tokenizer::Encode;
  void Encode(std::string_view text, std::vector<int32_t>* ids) const override;
  absl::StatusOr<std::string> Decode(std::span<const int32_t> ids) const override;
  int64_t vocab_size() const override { return 256; }
  const std::string& name() const override { return name_; }
  const std::string& hash() const override { return hash_; }

 private:
  std::string name_, hash_;
};

}  // namespace lt2
