// Attention of bf16 on tensor cores: head sizes that are multiples of 8 up to 256.
#pragma once

#include "kernels/attention.h"

namespace lt2::cuda {

void TensorCoreAttentionForward(const Stream& stream, const AttentionForwardArgs& args);
// stats_HN: a float2 (log2 e · lse_ih, do_ih · o_ih) for each head and query.
void TensorCoreAttentionBackward(const Stream& stream, const AttentionBackwardArgs& args,
                                 const void* stats_HN);

// The same with products of a warpgroup (kernels/cuda/warpgroup.cuh), for narrower heads.
inline constexpr int64_t kWarpgroupWidth = 128;
void WarpgroupAttentionForward(const Stream& stream, const AttentionForwardArgs& args);
// Keeps ds for dq: not for dq alone, nor where those of one group of heads take too much memory.
bool WarpgroupBackwardFits(const AttentionBackwardArgs& args);
void WarpgroupAttentionBackward(const Stream& stream, const AttentionBackwardArgs& args);

}  // namespace lt2::cuda
