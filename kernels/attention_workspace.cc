#include "kernels/attention_workspace.h"

#include <algorithm>

namespace lt2 {
namespace {

// Of a head: at most as many as if nearly all tokens were one document.
int64_t TilesOf(const Documents& documents) {
  const auto of_first = [](int64_t blocks) { return blocks * (blocks + 1) / 2; };
  const int64_t first = std::max<int64_t>(0, documents.query_begin() - 63) / 64;
  return of_first((documents.query_end() + 63) / 64) - of_first(first) + documents.capacity();
}

int64_t HeadsOfGroup(const AttentionBackwardArgs& args) {
  return args.q_NHD.dim(1) / args.k_NGD.dim(1);
}

int64_t GroupBytes(const AttentionBackwardArgs& args) {
  return HeadsOfGroup(args) * TilesOf(args.documents) * AttentionWorkspace::kTileBytes;
}

}  // namespace

bool AttentionWorkspace::Fits(const AttentionBackwardArgs& args) {
  return std::max(args.q_NHD.dim(2), args.v_NGE.dim(2)) <= kMostWidth &&
         (args.dk_NGD.defined() || args.dv_NGE.defined()) &&
         (!args.dq_NHD.defined() || GroupBytes(args) <= kMostTileBytes);
}

AttentionWorkspace::AttentionWorkspace(const AttentionBackwardArgs& args)
    : keeps_tiles(args.dq_NHD.defined()),
      tiles(TilesOf(args.documents)),
      stats_stride(args.q_NHD.dim(0) / 2 * 2 + 2) {
  const int64_t groups = args.k_NGD.dim(1);
  const int64_t most = keeps_tiles ? kMostTileBytes / GroupBytes(args) : groups;
  passes = static_cast<int>((groups + most - 1) / most);
  groups_a_pass = static_cast<int>((groups + passes - 1) / passes);
  tile_bytes = keeps_tiles ? groups_a_pass * GroupBytes(args) : 0;
  stats = 2 * stats_stride * args.q_NHD.dim(1);
  counters = 2 * passes;
  bytes = tile_bytes + 8 * stats + 4 * (counters + args.documents.capacity());
}

Tensor CountedWorkspace(const AttentionBackwardArgs& args) {
  const Tensor& q = args.q_NHD;
  if (!q.on_meta() || q.size() == 0 || q.dtype() != DType::kBF16) return {};
  if (!AttentionWorkspace::Fits(args)) return {};
  return Tensor::Empty({AttentionWorkspace(args).bytes}, DType::kU8, q.device());
}

}  // namespace lt2
