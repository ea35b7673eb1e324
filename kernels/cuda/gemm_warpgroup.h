// The products of weight gradients by warpgroups (Hopper): c += aᵀ b, bfloat16 into float32. Tiles
// that would leave most of the GPU idle at the end are split into several sums; these are added in
// a fixed order.
#pragma once

#include "core/cuda/stream.h"
#include "kernels/gemm.h"

namespace lt2::cuda {

// Whether WarpgroupGemm can: what is needed of types, sizes and addresses, and of the GPU.
bool WarpgroupsTake(const GemmArgs& args);

// Adds to `c` in place of args.c. turns: of WarpgroupGemmTurns() zeros, which it leaves as zeros;
// not used by two streams at a time.
void WarpgroupGemm(cudaStream_t stream, const GemmArgs& args, float* c, int* turns);
int WarpgroupGemmTurns();

}  // namespace lt2::cuda
