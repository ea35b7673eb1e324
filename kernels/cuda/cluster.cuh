// Blocks of a cluster (Hopper) that share what they copy.
#pragma once

#include "kernels/cuda/bulk_copy.cuh"

namespace lt2::cuda {

// Of this block in its cluster.
__device__ inline int ClusterRank() {
  uint32_t rank = 0;
  LT2_HOPPER_ASM("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return static_cast<int>(rank);
}
// All threads of all blocks of the cluster: what was written is visible to everybody.
__device__ inline void SyncCluster() {
  __syncwarp();
  LT2_HOPPER_ASM("barrier.cluster.arrive.release.aligned;" ::: "memory");
  LT2_HOPPER_ASM("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// At the barrier that lies at this address in a block of the cluster.
__device__ inline void ArriveAt(uint32_t barrier, int rank) {
  LT2_HOPPER_ASM(
      "{.reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; "
      "mbarrier.arrive.shared::cluster.b64 _, [there];}" ::"r"(barrier),
      "r"(rank)
      : "memory");
}

// CopyBox to this address in each of the blocks that have a bit in `ranks`, whose own barriers at
// `barrier` count its bytes.
__device__ inline void CopyBoxToAll(uint32_t to, const CUtensorMap& map, uint32_t barrier,
                                    int column, int row, uint32_t ranks) {
  LT2_HOPPER_ASM(
      "{.reg .b16 ranks; cvt.u16.u32 ranks, %5; "
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4}], [%2], ranks;}" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(column), "r"(row), "r"(ranks)
      : "memory");
}

// Where the kernel is one of clusters of `size` blocks; blocks is a multiple of it.
template <class Args>
void LaunchClusters(const char* name, void (*kernel)(Args), unsigned blocks, int size, int threads,
                    int shared_bytes, cudaStream_t stream, const Args& args) {
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(size), 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  LT2_CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes));
  const cudaError_t status = cudaLaunchKernelEx(&config, kernel, args);
  CHECK(status == cudaSuccess) << name << " in " << OperatorNote() << ": "
                               << cudaGetErrorString(status);
}

}  // namespace lt2::cuda
