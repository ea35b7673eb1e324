// The passes of scan_states.cuh on Hopper's copy engine and products of a warpgroup, in bf16.
#pragma once

#include "kernels/cuda/scan_operands.cuh"

namespace lt2::cuda {

// False, and nothing is done, where it cannot be so: another GPU, keys wider than 128 (delta rule)
// or 256, widened or scaled values, or values that do not come in 16 bytes.
bool WarpgroupForwardStates(const Stream& stream, const char* name, const ForwardStates<bf16>& data,
                            bool delta);
bool WarpgroupReverseStates(const Stream& stream, const char* name, const ReverseStates<bf16>& data,
                            bool delta);

}  // namespace lt2::cuda
