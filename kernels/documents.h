// Where documents begin in a run of tokens.
//
// Every sequence operator sees one row of `tokens` tokens: a batch of B rows of length T is B·T
// tokens whose rows are (at least) one document each. State, convolution, attention and positions
// restart at every document. The arrays live in the device's memory and have fixed capacity, so
// that a step with other documents allocates nothing, and a recorded one reads those of now.
#pragma once

#include <span>
#include <vector>

#include "core/upload.h"

namespace lt2 {

// Chunk length of all chunked scans; a chunk never straddles documents.
inline constexpr int64_t kChunk = 64;

class Documents {
 public:
  // Room for `capacity` documents over `tokens` tokens: ⌈tokens/64⌉ + capacity chunks.
  Documents(int64_t tokens, int64_t capacity, Device device);

  // cu_seqlens: 0 = first, …, tokens = last, strictly increasing; at most capacity documents. What
  // is queued before still sees the documents before.
  void Fill(std::span<const int32_t> cu_seqlens);
  // Equal rows of `length` tokens.
  static Documents Rows(int64_t rows, int64_t length, Device device);
  static Documents Of(std::span<const int32_t> cu_seqlens, Device device);

  int64_t tokens() const { return tokens_; }
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
  const Tensor& positions() const { return positions_; }  // I32 [tokens], 0 at a document's start
  // I32 [capacity + 1]: the first chunk of each document, then the number of chunks.
  const Tensor& first_chunks() const { return first_chunks_; }

 private:
  int64_t tokens_, capacity_, count_, chunk_count_;
  Upload arrays_;  // the four below, which are parts of its tensor
  Tensor cu_seqlens_, chunks_, positions_, first_chunks_;
};

}  // namespace lt2
