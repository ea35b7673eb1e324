// Workspace that a kernel needs only while it runs. Like any tensor it comes from what the step has
// free at that moment, so that it seldom raises the peak.
#pragma once

#include "core/tensor.h"

namespace lt2::cuda {

// `bytes` of GPU memory, valid until the thread's next call.
void* Scratch(const Stream& stream, int64_t bytes);
template <class T>
T* ScratchFor(const Stream& stream, int64_t elements) {
  return static_cast<T*>(Scratch(stream, elements * static_cast<int64_t>(sizeof(T))));
}

}  // namespace lt2::cuda
