// What prefill leaves in the caches of a decoding step.
#pragma once

#include "core/tensor.h"
#include "kernels/documents.h"

namespace lt2 {

// The rows of each document, one for `block` tokens (laid out as kernels/block_mean.h says), into
// the cache [sequences, capacity, …] of its sequence.
void FillCache(const Tensor& rows, const Documents& documents, int64_t block, const Tensor& cache);

}  // namespace lt2
