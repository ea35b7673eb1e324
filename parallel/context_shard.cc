#include "parallel/context_shard.h"

#include "core/allocator.h"

namespace lt2 {
namespace {

void FillPart(std::span<const int32_t> cu_seqlens, int64_t first, int64_t last,
              Documents* documents) {
  const RowPart range = PartOf(cu_seqlens, first, last);
  documents->Fill(range.cu_seqlens, range.first_position);
}

}  // namespace

ContextShard::ContextShard(Communicator& cp, int64_t row_tokens, int64_t max_documents,
                           Device device, StateExchange exchange)
    : cp_(cp),
      row_tokens_(row_tokens),
      max_documents_(max_documents),
      device_(device),
      documents_(tokens(), std::min(max_documents, tokens()), device),
      link_(cp, device, exchange),
      cu_seqlens_({0, static_cast<int32_t>(row_tokens)}) {
  CHECK_GE(row_tokens, cp.size()) << "a token a rank at least";
}

void ContextShard::Fill(std::span<const int32_t> cu_seqlens) {
  CHECK_EQ(cu_seqlens.back(), row_tokens_);
  cu_seqlens_.assign(cu_seqlens.begin(), cu_seqlens.end());
  const RowPart own = PartOf(cu_seqlens_, begin(), begin() + tokens());
  documents_.Fill(own.cu_seqlens, own.first_position);
  std::vector<int32_t> links;
  for (int r = 0; r < cp_.size(); ++r) {
    const RowPart range = PartOf(cu_seqlens_, Begin(r), Begin(r + 1));
    links.push_back((range.continues() ? kContinues : 0) | (range.spans() ? kSpans : 0));
  }
  link_.Fill(links);
  for (auto& [key, documents] : parts_) FillPart(cu_seqlens_, key[0], key[1], &documents);
}

const Documents& ContextShard::context(int64_t reach) {
  return DocumentsOf(begin() - Halo(reach), begin() + tokens(), begin(), begin() + tokens());
}

const Documents& ContextShard::DocumentsOf(int64_t first, int64_t last, int64_t begin,
                                           int64_t end) {
  const std::array<int64_t, 4> key = {first, last, begin, end};
  const auto it = parts_.find(key);
  if (it != parts_.end()) return it->second;
  const PoolScope common(nullptr);  // it outlives the step
  Documents documents(last - first, std::min(max_documents_, last - first), device_,
                      {begin - first, end - first});
  FillPart(cu_seqlens_, first, last, &documents);
  return parts_.emplace(key, std::move(documents)).first->second;
}

}  // namespace lt2
