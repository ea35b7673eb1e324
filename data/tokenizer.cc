#include "data/tokenizer.h"

#include "core/strings.h"
#include "data/byte_tokenizer.h"

namespace lt2 {

absl::StatusOr<std::unique_ptr<Tokenizer>> MakeTokenizer(const std::string& name) {
  if (name == "bytes") return std::make_unique<ByteTokenizer>();
  return absl::InvalidArgumentError(
      StrCat("tokenizer \"", name, "\": only \"bytes\" is supported by this version"));
}

}  // namespace lt2
