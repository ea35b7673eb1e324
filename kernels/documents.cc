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
  if (cu_seqlens_.device().backend == Backend::kMeta) return;  // capacities stand for counts
  // Made on the host, then copied to where they are read.
  const auto on_host = [](const Tensor& x) {
    return x.on_host() ? x : Tensor::Empty(x.shape(), x.dtype(), {Backend::kCpu});
  };
  const Tensor cu_host = on_host(cu_seqlens_), chunks_host = on_host(chunks_);
  const Tensor positions_host = on_host(positions_), first_host = on_host(first_chunks_);
  int32_t* cu = std::ranges::copy(cu_seqlens, cu_host.data<int32_t>()).out;
  int32_t* chunk = chunks_host.data<int32_t>();
  int32_t* position = positions_host.data<int32_t>();
  int32_t* first_chunk = first_host.data<int32_t>();
  chunk_count_ = 0;
  for (int64_t d = 0; d < count_; ++d) {
    const int32_t begin = cu_seqlens[d], end = cu_seqlens[d + 1];
    CHECK_LT(begin, end) << "document " << d << " is empty";
    *first_chunk++ = static_cast<int32_t>(chunk_count_);
    for (int32_t t = begin; t < end; t += kChunk) {
      *chunk++ = static_cast<int32_t>(d);
      *chunk++ = t;
      *chunk++ = std::min<int32_t>(kChunk, end - t);
      ++chunk_count_;
    }
    for (int32_t t = begin; t < end; ++t) *position++ = t - begin;
  }
  std::fill(cu, cu_host.data<int32_t>() + cu_host.size(), static_cast<int32_t>(tokens_));
  std::fill(chunk, chunks_host.data<int32_t>() + chunks_host.size(), 0);
  std::fill(first_chunk, first_host.data<int32_t>() + first_host.size(),
            static_cast<int32_t>(chunk_count_));
  for (const auto& [to, from] : {std::pair(&cu_seqlens_, &cu_host),
                                 {&chunks_, &chunks_host},
                                 {&positions_, &positions_host},
                                 {&first_chunks_, &first_host}}) {
    if (!to->on_host()) to->CopyFrom(*from);
  }
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
