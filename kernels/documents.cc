#include "kernels/documents.h"

#include <algorithm>

namespace lt2 {

Documents::Documents(int64_t tokens, int64_t capacity, Device device)
    : tokens_(tokens),
      capacity_(capacity),
      count_(capacity),
      chunk_count_((tokens + kChunk - 1) / kChunk + capacity),
      cu_seqlens_(Tensor::Empty({capacity + 1}, DType::kI32, device)),
      chunks_(Tensor::Empty({chunk_count_, 3}, DType::kI32, device)),
      positions_(Tensor::Empty({tokens}, DType::kI32, device)),
      first_chunks_(Tensor::Empty({capacity + 1}, DType::kI32, device)) {}

void Documents::Fill(std::span<const int32_t> cu_seqlens) {
  CHECK_GE(cu_seqlens.size(), 2u);
  CHECK_EQ(cu_seqlens.front(), 0);
  CHECK_EQ(cu_seqlens.back(), tokens_);
  count_ = static_cast<int64_t>(cu_seqlens.size()) - 1;
  CHECK_LE(count_, capacity_);
  if (!cu_seqlens_.on_host()) return;  // kMeta: capacities stand for counts
  std::copy(cu_seqlens.begin(), cu_seqlens.end(), cu_seqlens_.data<int32_t>());
  int32_t* chunk = chunks_.data<int32_t>();
  int32_t* position = positions_.data<int32_t>();
  int32_t* first_chunk = first_chunks_.data<int32_t>();
  chunk_count_ = 0;
  for (int64_t d = 0; d < count_; ++d) {
    const int32_t begin = cu_seqlens[d], end = cu_seqlens[d + 1];
    CHECK_LT(begin, end) << "document " << d << " is empty";
    first_chunk[d] = static_cast<int32_t>(chunk_count_);
    for (int32_t t = begin; t < end; t += kChunk) {
      *chunk++ = static_cast<int32_t>(d);
      *chunk++ = t;
      *chunk++ = std::min<int32_t>(kChunk, end - t);
      ++chunk_count_;
    }
    for (int32_t t = begin; t < end; ++t) *position++ = t - begin;
  }
  first_chunk[count_] = static_cast<int32_t>(chunk_count_);
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
