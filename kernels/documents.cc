#include "kernels/documents.h"

#include <algorithm>

namespace lt2 {

namespace {

// A part's elements, rounded up so that the next one is aligned.
int64_t Room(int64_t elements) { return (elements + 63) / 64 * 64; }

}  // namespace

Documents::Documents(int64_t tokens, int64_t capacity, Device device)
    : tokens_(tokens),
      capacity_(capacity),
      count_(capacity),
      chunk_count_((tokens + kChunk - 1) / kChunk + capacity),
      arrays_({2 * Room(capacity + 1) + Room(3 * chunk_count_) + Room(tokens)}, DType::kI32,
              device) {
  int64_t at = 0;
  const auto part = [&](const Shape& shape) {
    const Tensor tensor = arrays_.tensor().Flat(at, shape.size()).Reshape(shape);
    at += Room(shape.size());
    return tensor;
  };
  cu_seqlens_ = part({capacity + 1});
  first_chunks_ = part({capacity + 1});
  chunks_ = part({chunk_count_, 3});
  positions_ = part({tokens});
}

void Documents::Fill(std::span<const int32_t> cu_seqlens) {
  CHECK_GE(cu_seqlens.size(), 2u);
  CHECK_EQ(cu_seqlens.front(), 0);
  CHECK_EQ(cu_seqlens.back(), tokens_);
  count_ = static_cast<int64_t>(cu_seqlens.size()) - 1;
  CHECK_LE(count_, capacity_);
  if (arrays_.tensor().on_meta()) return;  // capacities stand for counts
  int32_t* const arrays = arrays_.Next<int32_t>();
  int32_t* const first_chunks = arrays + Room(capacity_ + 1);
  int32_t* const chunks = first_chunks + Room(capacity_ + 1);
  int32_t* const positions = chunks + Room(chunks_.size());
  int32_t *chunk = chunks, *position = positions;
  chunk_count_ = 0;
  for (int64_t d = 0; d < count_; ++d) {
    const int32_t begin = cu_seqlens[d], end = cu_seqlens[d + 1];
    CHECK_LT(begin, end) << "document " << d << " is empty";
    first_chunks[d] = static_cast<int32_t>(chunk_count_);
    for (int32_t t = begin; t < end; t += kChunk) {
      *chunk++ = static_cast<int32_t>(d);
      *chunk++ = t;
      *chunk++ = std::min<int32_t>(kChunk, end - t);
      ++chunk_count_;
    }
    for (int32_t t = begin; t < end; ++t) *position++ = t - begin;
  }
  std::fill(std::ranges::copy(cu_seqlens, arrays).out, first_chunks, static_cast<int32_t>(tokens_));
  std::fill(first_chunks + count_, chunks, static_cast<int32_t>(chunk_count_));
  std::fill(chunk, positions, 0);
  std::fill(position, arrays + arrays_.tensor().size(), 0);
  arrays_.Send();
}

Documents Documents::Of(std::span<const int32_t> cu_seqlens, Device device) {
  Documents documents(cu_seqlens.back(), static_cast<int64_t>(cu_seqlens.size()) - 1, device);
  documents.Fill(cu_seqlens);
  return documents;
}

Documents Documents::Rows(int64_t rows, int64_t length, Device device) {
  std::vector<int32_t> cu(rows + 1);
  for (int64_t r = 0; r <= rows; ++r) cu[r] = static_cast<int32_t>(r * length);
  return Of(cu, device);
}

}  // namespace lt2
