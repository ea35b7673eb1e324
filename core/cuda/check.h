// Every CUDA call is checked: LT2_CUDA_CHECK(cudaMemset(…)) dies with the call and the reason.
#pragma once

#include <cuda_runtime_api.h>

#include "core/check.h"

#define LT2_CUDA_CHECK(call)                                                       \
  do {                                                                             \
    const cudaError_t status_ = (call);                                            \
    CHECK(status_ == cudaSuccess) << #call << ": " << cudaGetErrorString(status_); \
  } while (false)
