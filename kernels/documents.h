// Where documents begin in a run of tokens.
//
// Every sequence operator sees one row of `tokens` tokens: a batch of B rows of length T is B·T
// tokens whose rows are (at least) one document each. State, convolution, attention and positions
// restart at every document. The arrays live in the device's memory and have fixed capacity, so
// that a step with other documents allocates nothing, and a recorded one reads those of now.
//
// Queries may be a part of the tokens: attention then has rows of queries for these alone, row i
// for token query_begin() + i, and of keys for all tokens.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "core/upload.h"

namespace lt2 {

// Chunk length of all chunked scans; a chunk never straddles documents.
inline constexpr int64_t kChunk = 64;

// Tokens [begin, end).
struct TokenRange {
  int64_t begin, end;
  int64_t size() const { return end - begin; }
};

class Documents {
 public:
  // Room for `capacity` documents over `tokens` tokens: ⌈tokens/64⌉ + capacity chunks.
  Documents(int64_t tokens, int64_t capacity, Device device);
  // `queries`: at least one token.
  Documents(int64_t tokens, int64_t capacity, Device device, TokenRange queries);

  // cu_seqlens: 0 = first, …, tokens = last, strictly increasing; at most capacity documents. What
  // is queued before still sees the documents before. `first_position`: how many tokens of the
  // first document lie before token 0, seen by no operator but through whole_positions().
  void Fill(std::span<const int32_t> cu_seqlens, int64_t first_position = 0);
  // Equal rows of `length` tokens.
  static Documents Rows(int64_t rows, int64_t length, Device device);
  static Documents Of(std::span<const int32_t> cu_seqlens, Device device);
  static Documents Of(std::span<const int32_t> cu_seqlens, Device device, TokenRange queries);

  int64_t tokens() const { return tokens_; }
  int64_t query_begin() const { return queries_.begin; }
  int64_t query_end() const { return queries_.end; }
  int64_t query_tokens() const { return queries_.size(); }
  int64_t capacity() const { return capacity_; }
  int64_t chunk_capacity() const { return chunks_.dim(0); }
  // How many there are now (host's copy; on kMeta the capacities).
  int64_t count() const { return count_; }
  int64_t chunk_count() const { return chunk_count_; }

  // What lies beyond the count is empty, so that a kernel may run over capacities: documents that
  // begin and end at `tokens`, chunks of 0 tokens.
  const Tensor& cu_seqlens() const { return cu_seqlens_; }  // I32 [capacity + 1]
  // I32 [chunk_capacity, 3]: document, first token, tokens (1 … 64), in order of tokens;
  // then zeros.
  const Tensor& chunks() const { return chunks_; }
  // Likewise of the queries alone: what of chunks() is outside of their range is cut off. The very
  // tensor where all tokens are queries, else I32 [⌈query_tokens/64⌉ + capacity, 3].
  const Tensor& query_chunks() const { return query_chunks_; }
  int64_t query_chunk_capacity() const { return query_chunks_.dim(0); }
  int64_t query_chunk_count() const { return query_chunk_count_; }
  // I32 [tokens], 0 at a document's first token here: where its rows are.
  const Tensor& positions() const { return positions_; }
  // I32 [tokens], in the whole document: those of the first one begin at first_position. What
  // rotary embeddings take.
  const Tensor& whole_positions() const { return whole_positions_; }
  // whole_positions() of the queries.
  Tensor query_positions() const { return whole_positions_.Rows(query_begin(), query_end()); }
  // I32 [capacity + 1]: the first chunk of each document, then the number of chunks.
  const Tensor& first_chunks() const { return first_chunks_; }

 private:
  bool AllAreQueries() const { return queries_.size() == tokens_; }

  int64_t tokens_, capacity_;
  TokenRange queries_;
  int64_t count_, chunk_count_, query_chunk_count_;
  Upload arrays_;  // those below, which are parts of its tensor
  Tensor cu_seqlens_, chunks_, query_chunks_, positions_, whole_positions_, first_chunks_;
};

// The sum over all queries of what they see, from that of a document's first queries:
// of_first(length). Where the documents' lengths are not the host's, they are taken as equal.
template <class OfFirst>
double SumOverQueries(const Documents& documents, const OfFirst& of_first) {
  const Tensor& cu_seqlens = documents.cu_seqlens();
  const int32_t* cu = cu_seqlens.on_host() ? cu_seqlens.data<int32_t>() : nullptr;
  const int64_t count = documents.count();
  const double mean = static_cast<double>(documents.tokens()) / std::max<double>(1, count);
  double sum = 0;
  for (int64_t d = 0; d < count; ++d) {
    const double begin = cu ? cu[d] : d * mean, length = cu ? cu[d + 1] - cu[d] : mean;
    const double first = std::clamp(documents.query_begin() - begin, 0.0, length);
    const double end = std::clamp(documents.query_end() - begin, 0.0, length);
    if (first < end) sum += of_first(end) - of_first(first);
  }
  return sum;
}

}  // namespace lt2
