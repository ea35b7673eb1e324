// One dataset, a folder of token shards or one text file, as a single long array of tokens.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "data/mapped_file.h"
#include "data/shard.h"
#include "data/tokenizer.h"

namespace lt2 {

class Source {
 public:
  // Errors as Shard::Open and ListShards; InvalidArgument also where shards disagree with each
  // other or with `tokenizer`, or where a text file is asked for with another tokenizer than
  // "bytes".
  static absl::StatusOr<std::shared_ptr<const Source>> Open(const std::string& path,
                                                            const Tokenizer& tokenizer);

  const std::string& path() const { return path_; }
  bool is_text() const { return text_.has_value(); }
  int64_t tokens() const { return tokens_; }
  int64_t documents() const { return documents_; }
  int64_t vocab_size() const { return vocab_size_; }
  // 32 hexadecimal digits: equal for equal tokens and documents in the same split over files.
  const std::string& content_hash() const { return content_hash_; }

  // Where document number `document` begins; tokens() for documents().
  int64_t DocumentStart(int64_t document) const;
  // Calls visit(position) for every document start in [begin, end), in order.
  template <class Visit>
  void ForEachStart(int64_t begin, int64_t end, Visit&& visit) const;

  // Reads tokens [begin, begin + ids.size()), which must lie inside. DataLoss naming the file and
  // the position of an id outside the vocabulary.
  absl::Status ReadWindow(int64_t begin, std::span<int32_t> ids) const;

 private:
  // A file's worth of tokens: [first, first + count) of the whole, documents from number
  // first_document on; starts are relative to `first`.
  struct Piece {
    const std::byte* data;
    int width;
    int64_t first, count, first_document;
    std::span<const int64_t> starts;
    std::string path;
  };

  absl::Status OpenText(const std::string& path, const Tokenizer& tokenizer);
  absl::Status OpenShards(const std::string& path, const Tokenizer& tokenizer);
  void AddPiece(std::span<const std::byte> data, int width, std::span<const int64_t> starts,
                const std::string& path);
  // The piece that holds token `position`.
  size_t PieceOf(int64_t position) const;

  std::string path_, content_hash_;
  std::optional<MappedFile> text_;
  std::vector<int64_t> text_starts_;
  std::vector<Shard> shards_;
  std::vector<Piece> pieces_;
  int64_t tokens_ = 0, documents_ = 0, vocab_size_ = 0;
};

template <class Visit>
void Source::ForEachStart(int64_t begin, int64_t end, Visit&& visit) const {
  if (begin >= end || begin >= tokens_) return;
  for (size_t p = PieceOf(begin); p < pieces_.size() && pieces_[p].first < end; ++p) {
    const Piece& piece = pieces_[p];
    auto start = std::lower_bound(piece.starts.begin(), piece.starts.end(), begin - piece.first);
    for (; start != piece.starts.end() && piece.first + *start < end; ++start) {
      visit(piece.first + *start);
    }
  }
}

}  // namespace lt2
