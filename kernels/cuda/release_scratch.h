// What kernels have as workspace (scratch.h) goes back to where tensors come from.
#pragma once

namespace lt2::cuda {

// Of the calling thread; what was queued may still use it.
void ReleaseScratch();

}  // namespace lt2::cuda
