// What the copy engine takes out of shared memory (Hopper). bulk_copy.cuh has what it brings.
#pragma once

#include "kernels/cuda/bulk_copy.cuh"

namespace lt2::cuda {

// The copy engine sees what this thread has written to shared memory.
__device__ inline void PublishStores() {
  LT2_HOPPER_ASM("fence.proxy.async.shared::cta;" ::: "memory");
}
// One thread: a box leaves for where it begins, (column, row); what is outside of the tensor stays.
__device__ inline void StoreBox(const CUtensorMap& map, uint32_t from, int column, int row) {
  LT2_HOPPER_ASM(
      "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];" ::"l"(
          &map),
      "r"(from), "r"(column), "r"(row)
      : "memory");
}
// By the thread that began them: closes a group of boxes. All groups but the last kLeft have been
// read, and may be overwritten.
template <int kLeft>
__device__ inline void CloseStores() {
  LT2_HOPPER_ASM("cp.async.bulk.commit_group;" ::: "memory");
  LT2_HOPPER_ASM("cp.async.bulk.wait_group.read %0;" ::"n"(kLeft) : "memory");
}

}  // namespace lt2::cuda
