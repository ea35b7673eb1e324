// A kernel close behind another (Hopper): its blocks take their places while the other's last ones
// are still at work, instead of when all have left.
#pragma once

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/hopper.cuh"

namespace lt2::cuda {

// The kernel behind may come, once all blocks have said so. What they write it sees nevertheless.
__device__ inline void AdmitKernelBehind() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
// By every thread of the kernel behind, before it reads or writes anything: all kernels before it
// have ended.
__device__ inline void AwaitKernelBefore() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// With `shared` bytes of shared memory.
template <class... Params, class... Args>
void LaunchBehindWith(int shared, const Stream& stream, const char* name, void (*kernel)(Params...),
                      dim3 grid, dim3 block, const Args&... args) {
  LT2_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  config.stream = Handle(stream);
  config.attrs = &attribute;
  config.numAttrs = HasHopper() ? 1 : 0;
  const cudaError_t status = cudaLaunchKernelEx(&config, kernel, args...);
  CHECK(status == cudaSuccess) << name << " in " << OperatorNote() << ": "
                               << cudaGetErrorString(status);
}
template <class... Params, class... Args>
void LaunchBehind(const Stream& stream, const char* name, void (*kernel)(Params...), dim3 grid,
                  dim3 block, const Args&... args) {
  LaunchBehindWith(0, stream, name, kernel, grid, block, args...);
}

}  // namespace lt2::cuda
