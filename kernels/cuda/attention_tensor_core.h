// Attention of bf16 on tensor cores: head sizes that are multiples of 8 up to 256.
#pragma once

#include "kernels/attention.h"

namespace lt2::cuda {

void TensorCoreAttentionForward(const Stream& stream, const AttentionForwardArgs& args);
// stats_HN: a float2 (log2 e · lse_ih, do_ih · o_ih) for each head and query.
void TensorCoreAttentionBackward(const Stream& stream, const AttentionBackwardArgs& args,
                                 const void* stats_HN);

// The same with products of a warpgroup (kernels/cuda/warpgroup.cuh), for heads of
// AttentionWorkspace::kMostWidth; backward where its workspace fits.
void WarpgroupAttentionForward(const Stream& stream, const AttentionForwardArgs& args);
void WarpgroupAttentionBackward(const Stream& stream, const AttentionBackwardArgs& args);

}  // namespace lt2::cuda
