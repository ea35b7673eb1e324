#include "launch/loaded_batch.h"

#include <algorithm>

namespace lt2 {

LoadedBatch::LoadedBatch(Communicator& cp, int64_t tokens, int64_t max_documents, Device device,
                         StateExchange exchange)
    : row_tokens_(tokens),
      shard_(cp.size() == 1
                 ? nullptr
                 : std::make_unique<ContextShard>(cp, tokens, max_documents, device, exchange)),
      tokens_2N_({2, shard_ ? shard_->tokens() : tokens}, DType::kI32, device),
      ids_N_(tokens_2N_.tensor().Rows(0, 1).Reshape({tokens_2N_.tensor().dim(1)})),
      targets_N_(tokens_2N_.tensor().Rows(1, 2).Reshape(ids_N_.shape())),
      documents_(tokens, max_documents, device) {}

void LoadedBatch::Load(const Batch& batch) {
  if (ids_N_.on_meta()) return;
  CHECK_EQ(static_cast<int64_t>(batch.ids.size()), row_tokens_);
  CHECK_EQ(batch.targets.size(), batch.ids.size());
  const int64_t first = shard_ ? shard_->begin() : 0, count = tokens();
  int32_t* const to = tokens_2N_.Next<int32_t>();
  std::copy_n(batch.ids.begin() + first, count, to);
  std::copy_n(batch.targets.begin() + first, count, to + count);
  tokens_2N_.Send();
  if (shard_) {
    shard_->Fill(batch.cu_seqlens);
  } else {
    documents_.Fill(batch.cu_seqlens);
  }
}

}  // namespace lt2
