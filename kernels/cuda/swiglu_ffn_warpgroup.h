// Products fused with SwiGLU by warpgroups (Hopper, bfloat16).
#pragma once

#include "core/cuda/stream.h"
#include "kernels/swiglu_ffn.h"

namespace lt2::cuda {

// Whether the functions below can: what is needed of types, sizes and addresses, and of the GPU.
bool WarpgroupsTake(const SwiGluFfnForwardArgs& args);
bool WarpgroupsTake(const SwiGluFfnBackwardArgs& args);

void WarpgroupSwiGluFfn(const Stream& stream, const SwiGluFfnForwardArgs& args);
void WarpgroupSwiGluFfn(const Stream& stream, const SwiGluFfnBackwardArgs& args);

}  // namespace lt2::cuda
