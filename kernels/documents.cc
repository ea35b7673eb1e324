#include "kernels/documents.h"

#include <algorithm>
#include <numeric>

namespace lt2 {

namespace {

// A part's elements, rounded up so that the next one is aligned.
int64_t Room(int64_t elements) { return (elements + 63) / 64 * 64; }

int64_t ChunkRoom(int64_t tokens, int64_t documents) {
  return (tokens + kChunk - 1) / kChunk + documents;
}

int32_t* PutChunk(int64_t document, int64_t begin, int64_t end, int32_t* to) {
  for (const int64_t value : {document, begin, end - begin}) *to++ = static_cast<int32_t>(value);
  return to;
}

}  // namespace

Documents::Documents(int64_t tokens, int64_t capacity, Device device)
    : Documents(tokens, capacity, device, {0, tokens}) {}

Documents::Documents(int64_t tokens, int64_t capacity, Device device, TokenRange queries)
    : tokens_(tokens),
      capacity_(capacity),
      queries_(queries),
      count_(capacity),
      chunk_count_(ChunkRoom(tokens, capacity)),
      query_chunk_count_(ChunkRoom(queries.size(), capacity)) {
  CHECK(0 <= queries.begin && queries.begin < queries.end && queries.end <= tokens)
      << "queries [" << queries.begin << ", " << queries.end << ") of " << tokens << " tokens";
  const int64_t query_chunks = AllAreQueries() ? 0 : query_chunk_count_;
  arrays_ = Upload(
      {2 * Room(capacity + 1) + Room(3 * chunk_count_) + Room(3 * query_chunks) + 2 * Room(tokens)},
      DType::kI32, device);
  int64_t at = 0;
  const auto part = [&](const Shape& shape) {
    const Tensor tensor = arrays_.tensor().Flat(at, shape.size()).Reshape(shape);
    at += Room(shape.size());
    return tensor;
  };
  cu_seqlens_ = part({capacity + 1});
  first_chunks_ = part({capacity + 1});
  chunks_ = part({chunk_count_, 3});
  query_chunks_ = AllAreQueries() ? chunks_ : part({query_chunks, 3});
  positions_ = part({tokens});
  whole_positions_ = part({tokens});
}

void Documents::Fill(std::span<const int32_t> cu_seqlens, int64_t first_position) {
  CHECK_GE(cu_seqlens.size(), 2u);
  CHECK_EQ(cu_seqlens.front(), 0);
  CHECK_EQ(cu_seqlens.back(), tokens_);
  CHECK_GE(first_position, 0);
  count_ = static_cast<int64_t>(cu_seqlens.size()) - 1;
  CHECK_LE(count_, capacity_);
  if (arrays_.tensor().on_meta()) return;  // capacities stand for counts
  int32_t* const arrays = arrays_.Next<int32_t>();
  std::fill_n(arrays, arrays_.tensor().size(), 0);
  int32_t* at = arrays;
  const auto part = [&at](const Tensor& tensor) {
    int32_t* const begin = at;
    at += Room(tensor.size());
    return begin;
  };
  int32_t* const cu = part(cu_seqlens_);
  int32_t* const first_chunks = part(first_chunks_);
  int32_t* chunk = part(chunks_);
  int32_t* query_chunk = AllAreQueries() ? nullptr : part(query_chunks_);
  int32_t* const positions = part(positions_);
  int32_t* const whole_positions = part(whole_positions_);

  chunk_count_ = query_chunk_count_ = 0;
  for (int64_t d = 0; d < count_; ++d) {
    const int32_t begin = cu_seqlens[d], end = cu_seqlens[d + 1];
    CHECK_LT(begin, end) << "document " << d << " is empty";
    first_chunks[d] = static_cast<int32_t>(chunk_count_);
    for (int64_t t = begin; t < end; t += kChunk) {
      const int64_t chunk_end = std::min<int64_t>(t + kChunk, end);
      chunk = PutChunk(d, t, chunk_end, chunk);
      ++chunk_count_;
      const int64_t low = std::max(t, queries_.begin), high = std::min(chunk_end, queries_.end);
      if (low >= high) continue;
      if (query_chunk != nullptr) query_chunk = PutChunk(d, low, high, query_chunk);
      ++query_chunk_count_;
    }
    std::iota(positions + begin, positions + end, 0);
    std::iota(whole_positions + begin, whole_positions + end,
              static_cast<int32_t>(d == 0 ? first_position : 0));
  }
  std::fill(std::ranges::copy(cu_seqlens, cu).out, cu + capacity_ + 1,
            static_cast<int32_t>(tokens_));
  std::fill(first_chunks + count_, first_chunks + capacity_ + 1,
            static_cast<int32_t>(chunk_count_));
  arrays_.Send();
}

Documents Documents::Of(std::span<const int32_t> cu_seqlens, Device device) {
  return Of(cu_seqlens, device, {0, cu_seqlens.back()});
}

Documents Documents::Of(std::span<const int32_t> cu_seqlens, Device device, TokenRange queries) {
  Documents documents(cu_seqlens.back(), static_cast<int64_t>(cu_seqlens.size()) - 1, device,
                      queries);
  documents.Fill(cu_seqlens);
  return documents;
}

Documents Documents::Rows(int64_t rows, int64_t length, Device device) {
  std::vector<int32_t> cu(rows + 1);
  for (int64_t r = 0; r <= rows; ++r) cu[r] = static_cast<int32_t>(r * length);
  return Of(cu, device);
}

}  // namespace lt2
