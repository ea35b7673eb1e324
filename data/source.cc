#include "data/source.h"

#include "core/check.h"
#include "core/file.h"
#include "core/hash.h"
#include "core/status_macros.h"
#include "core/strings.h"
#include "data/text_file.h"

namespace lt2 {

absl::StatusOr<std::shared_ptr<const Source>> Source::Open(const std::string& path,
                                                           const Tokenizer& tokenizer) {
  auto source = std::make_shared<Source>();
  source->path_ = path;
  const bool folder = FileSystem::Get().IsDirectory(path);
  RETURN_IF_ERROR(folder ? source->OpenShards(path, tokenizer) : source->OpenText(path, tokenizer));
  return source;
}

absl::Status Source::OpenText(const std::string& path, const Tokenizer& tokenizer) {
  if (path.ends_with(".h5")) {
    return absl::InvalidArgumentError(
        StrCat(path, ": name the folder that holds the shards, not one of them"));
  }
  ASSIGN_OR_RETURN(text_, MappedFile::Open(path));
  if (tokenizer.name() != "bytes") {
    return absl::InvalidArgumentError(
        StrCat(path, ": a text file is read directly only with tokenizer = \"bytes\", not \"",
               tokenizer.name(), "\"; make token shards of it with lt2 data tokenize"));
  }
  const std::span<const std::byte> bytes = text_->bytes();
  if (bytes.empty()) return absl::InvalidArgumentError(StrCat(path, ": the text is empty"));
  text_starts_ = DocumentStarts(text_->text());
  vocab_size_ = tokenizer.vocab_size();
  content_hash_ = ContentHash(bytes, text_starts_);
  AddPiece(bytes, 1, text_starts_, path);
  return absl::OkStatus();
}

absl::Status Source::OpenShards(const std::string& path, const Tokenizer& tokenizer) {
  ASSIGN_OR_RETURN(const std::vector<std::string> files, ListShards(path));
  std::string hashes;
  shards_.reserve(files.size());
  for (const std::string& file : files) {
    ASSIGN_OR_RETURN(Shard shard, Shard::Open(file));
    const ShardHeader& header = shard.header();
    const bool first = shards_.empty();
    if (!first && (header.tokenizer_hash != shards_[0].header().tokenizer_hash ||
                   header.vocab_size != vocab_size_)) {
      return absl::InvalidArgumentError(StrCat(
          file, ": was made with tokenizer \"", header.tokenizer, "\" (", header.tokenizer_hash,
          ", vocabulary ", header.vocab_size, "), but ", shards_[0].path(), " with \"",
          shards_[0].header().tokenizer, "\" (", shards_[0].header().tokenizer_hash,
          ", vocabulary ", vocab_size_, "); a folder holds shards of one tokenizer"));
    }
    if (header.tokenizer_hash != tokenizer.hash()) {
      return absl::InvalidArgumentError(
          StrCat(file, ": was made with tokenizer \"", header.tokenizer, "\" (",
                 header.tokenizer_hash, "), but the configuration's is \"", tokenizer.name(),
                 "\" (", tokenizer.hash(), "); tokenize the text again or change data.tokenizer"));
    }
    vocab_size_ = header.vocab_size;
    hashes += header.content_hash;
    AddPiece(shard.token_bytes(), shard.width(), shard.document_starts(), file);
    shards_.push_back(std::move(shard));
  }
  content_hash_ = Hash128(std::as_bytes(std::span(hashes)));
  return absl::OkStatus();
}

void Source::AddPiece(std::span<const std::byte> data, int width, std::span<const int64_t> starts,
                      const std::string& path) {
  const int64_t count = static_cast<int64_t>(data.size()) / width;
  pieces_.push_back({.data = data.data(),
                     .width = width,
                     .first = tokens_,
                     .count = count,
                     .first_document = documents_,
                     .starts = starts,
                     .path = path});
  tokens_ += count;
  documents_ += static_cast<int64_t>(starts.size());
}

size_t Source::PieceOf(int64_t position) const {
  const auto after =
      std::upper_bound(pieces_.begin(), pieces_.end(), position,
                       [](int64_t value, const Piece& piece) { return value < piece.first; });
  return static_cast<size_t>(after - pieces_.begin()) - 1;
}

int64_t Source::DocumentStart(int64_t document) const {
  CHECK(document >= 0 && document <= documents_) << document << " of " << documents_;
  if (document == documents_) return tokens_;
  const auto after = std::upper_bound(
      pieces_.begin(), pieces_.end(), document,
      [](int64_t value, const Piece& piece) { return value < piece.first_document; });
  const Piece& piece = *(after - 1);
  return piece.first + piece.starts[document - piece.first_document];
}

absl::Status Source::ReadWindow(int64_t begin, std::span<int32_t> ids) const {
  const int64_t length = static_cast<int64_t>(ids.size());
  CHECK(begin >= 0 && length <= tokens_ - begin)
      << begin << "+" << length << " of " << tokens_ << " in " << path_;
  int64_t done = 0;
  for (size_t p = PieceOf(begin); done < length; ++p) {
    const Piece& piece = pieces_[p];
    const int64_t at = begin + done - piece.first;
    const int64_t count = std::min(length - done, piece.count - at);
    const int64_t bad = WidenTokens(piece.data + at * piece.width, piece.width, count, vocab_size_,
                                    ids.data() + done);
    if (bad >= 0) {
      return absl::DataLossError(StrCat(piece.path, ": token ", at + bad, " has id ",
                                        static_cast<uint32_t>(ids[done + bad]),
                                        "; the vocabulary is 0 … ", vocab_size_ - 1));
    }
    done += count;
  }
  return absl::OkStatus();
}

}  // namespace lt2
