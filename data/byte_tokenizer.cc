#include "data/byte_tokenizer.h"

#include "core/hash.h"
#include "core/strings.h"

namespace lt2 {

ByteTokenizer::ByteTokenizer() : name_("bytes") {
  const std::string_view rule = "lt2 tokenizer: id = byte, vocabulary 256";
  hash_ = Hash128(std::as_bytes(std::span(rule)));
}

void ByteTokenizer::Encode(std::string_view text, std::vector<int32_t>* ids) const {
  ids->reserve(ids->size() + text.size());
  for (const char c : text) ids->push_back(static_cast<unsigned char>(c));
}

absl::StatusOr<std::string> ByteTokenizer::Decode(std::span<const int32_t> ids) const {
  std::string text;
  text.reserve(ids.size());
  for (const int32_t id : ids) {
    if (id < 0 || id > 255) {
      return absl::InvalidArgumentError(
          StrCat("token id ", id, " is not a byte: the \"bytes\" vocabulary is 0 … 255"));
    }
    text += static_cast<char>(id);
  }
  return text;
}

}  // namespace lt2
