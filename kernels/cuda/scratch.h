// Workspace that a kernel needs only while it runs: one buffer a thread, which is a stream's order.
#pragma once

#include "core/tensor.h"

namespace lt2::cuda {

// At least `bytes` of GPU memory, valid until the thread's next call. Grows when it must: a first
// step has asked for everything that later ones do.
void* Scratch(const Stream& stream, int64_t bytes);
template <class T>
T* ScratchFor(const Stream& stream, int64_t elements) {
  return static_cast<T*>(Scratch(stream, elements * static_cast<int64_t>(sizeof(T))));
}

}  // namespace lt2::cuda
