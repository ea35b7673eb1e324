// lt2 data tokenize: text files in, a folder of token shards out.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace lt2 {

struct TokenizeOptions {
  // .txt files (blank lines separate documents), .jsonl files (one object a line, its "text" is a
  // document), or folders of such files.
  std::vector<std::string> inputs;
  std::string tokenizer = "bytes";
  std::string out;
  int64_t tokens_per_shard = int64_t{1} << 28;
};

struct TokenizeReport {
  int64_t files = 0, bytes = 0;  // read
  int64_t documents = 0, tokens = 0, shards = 0;
  double seconds = 0;
};

// Told now and then how many bytes of the input are done.
using TokenizeProgress = std::function<void(int64_t done, int64_t total)>;

// NotFound for a missing input; InvalidArgument for a file of another kind, a line that is not JSON
// (with file and line), an input without text, or an output folder that is not empty.
absl::StatusOr<TokenizeReport> TokenizeFiles(const TokenizeOptions& options,
                                             const TokenizeProgress& progress = nullptr);

}  // namespace lt2
