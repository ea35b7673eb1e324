#include "data/tokenizer.h"

#include "core/strings.h"
#include "data/byte_tokenizer.h"

namespace lt2 {

absl::StatusOr<std::unique_ptr<Tokenizer>> MakeTokenizer(const std::string& name,
                                                         int64_t model_vocab) {
  if (name != "bytes") {
    return absl::InvalidArgumentError(
        StrCat("tokenizer \"", name, "\": only \"bytes\" is supported by this version"));
  }
  auto tokenizer = std::make_unique<ByteTokenizer>();
  if (model_vocab > 0 && tokenizer->vocab_size() > model_vocab) {
    return absl::InvalidArgumentError(
        StrCat("tokenizer \"", name, "\" has ", tokenizer->vocab_size(),
               " tokens, more than model.vocab = ", model_vocab, "; raise model.vocab"));
  }
  return tokenizer;
}

}  // namespace lt2
