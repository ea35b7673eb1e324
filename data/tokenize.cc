#include "data/tokenize.h"

#include <chrono>
#include <nlohmann/json.hpp>
#include <string_view>

#include "core/file.h"
#include "core/status_macros.h"
#include "core/strings.h"
#include "data/mapped_file.h"
#include "data/shard_writer.h"
#include "data/text_file.h"
#include "data/tokenizer.h"

namespace lt2 {
namespace {

bool IsText(std::string_view path) { return path.ends_with(".txt"); }
bool IsJsonLines(std::string_view path) { return path.ends_with(".jsonl"); }

// Folders replaced by the files in them.
absl::StatusOr<std::vector<std::string>> ListInputs(const std::vector<std::string>& inputs) {
  FileSystem& files = FileSystem::Get();
  std::vector<std::string> paths;
  for (const std::string& input : inputs) {
    if (!files.Exists(input)) return absl::NotFoundError(StrCat(input, ": there is no such input"));
    if (!files.IsDirectory(input)) {
      if (!IsText(input) && !IsJsonLines(input)) {
        return absl::InvalidArgumentError(StrCat(input, ": only .txt and .jsonl files are read"));
      }
      paths.push_back(input);
      continue;
    }
    const size_t before = paths.size();
    ASSIGN_OR_RETURN(const std::vector<std::string> names, files.List(input));
    for (const std::string& name : names) {
      if (IsText(name) || IsJsonLines(name)) paths.push_back(JoinPath(input, name));
    }
    if (paths.size() == before) {
      return absl::InvalidArgumentError(StrCat(input, ": the folder holds no .txt or .jsonl file"));
    }
  }
  if (paths.empty()) return absl::InvalidArgumentError("no input: name text files or folders");
  return paths;
}

class Run {
 public:
  Run(const Tokenizer& tokenizer, ShardWriter* writer, const TokenizeProgress& progress,
      int64_t total)
      : tokenizer_(tokenizer), writer_(writer), progress_(progress), total_(total) {}

  absl::Status File(const std::string& path) {
    ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
    return IsJsonLines(path) ? JsonLines(path, file.text()) : Text(file.text());
  }

 private:
  absl::Status Text(std::string_view text) {
    std::vector<int64_t> starts = DocumentStarts(text);
    starts.push_back(static_cast<int64_t>(text.size()));
    for (size_t d = 0; d + 1 < starts.size(); ++d) {
      RETURN_IF_ERROR(Document(text.substr(starts[d], starts[d + 1] - starts[d])));
      Advance(starts[d + 1] - starts[d]);
    }
    return absl::OkStatus();
  }

  absl::Status JsonLines(const std::string& path, std::string_view text) {
    for (int64_t number = 1; !text.empty(); ++number) {
      const std::string_view line = text.substr(0, text.find('\n'));
      const size_t length = std::min(text.size(), line.size() + 1);
      if (line.find_first_not_of(" \t\r") != std::string_view::npos) {
        const nlohmann::json object = nlohmann::json::parse(line, nullptr, false);
        if (!object.is_object() || !object.contains("text") || !object["text"].is_string()) {
          return absl::InvalidArgumentError(StrCat(
              path, ":", number,
              object.is_discarded() ? ": is not JSON" : ": is not an object with a text \"text\""));
        }
        RETURN_IF_ERROR(Document(object["text"].get_ref<const std::string&>()));
      }
      text.remove_prefix(length);
      Advance(static_cast<int64_t>(length));
    }
    return absl::OkStatus();
  }

  absl::Status Document(std::string_view text) {
    ids_.clear();
    tokenizer_.Encode(text, &ids_);
    return writer_->Add(ids_);
  }

  void Advance(int64_t bytes) {
    constexpr int64_t kStep = int64_t{1} << 22;
    const int64_t before = done_;
    done_ += bytes;
    if (progress_ && (done_ / kStep != before / kStep || done_ == total_)) {
      progress_(done_, total_);
    }
  }

  const Tokenizer& tokenizer_;
  ShardWriter* writer_;
  const TokenizeProgress& progress_;
  int64_t done_ = 0, total_;
  std::vector<int32_t> ids_;
};

}  // namespace

absl::StatusOr<TokenizeReport> TokenizeFiles(const TokenizeOptions& options,
                                             const TokenizeProgress& progress) {
  const auto start = std::chrono::steady_clock::now();
  ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, MakeTokenizer(options.tokenizer));
  ASSIGN_OR_RETURN(const std::vector<std::string> paths, ListInputs(options.inputs));
  TokenizeReport report;
  for (const std::string& path : paths) {
    ASSIGN_OR_RETURN(const int64_t size, FileSystem::Get().FileSize(path));
    report.bytes += size;
    ++report.files;
  }
  ShardWriter::Options writer_options = ShardWriter::Options::For(*tokenizer, options.out);
  writer_options.tokens_per_shard = options.tokens_per_shard;
  ASSIGN_OR_RETURN(ShardWriter writer, ShardWriter::Create(writer_options));
  Run run(*tokenizer, &writer, progress, report.bytes);
  absl::Status status;
  for (size_t i = 0; i < paths.size() && status.ok(); ++i) status = run.File(paths[i]);
  if (status.ok()) status = writer.Finish();
  if (!status.ok()) {
    writer.Discard();
    return status;
  }
  report.documents = writer.documents();
  report.tokens = writer.tokens();
  report.shards = writer.shards();
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

}  // namespace lt2
