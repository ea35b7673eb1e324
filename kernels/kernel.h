// How an operator is declared once and implemented per backend.
//
//   struct RmsNormForwardArgs { Tensor x, w, y, rstd; float eps; };
//   LT2_KERNEL(RmsNormForward, RmsNormForwardArgs)
//
// declares reference::RmsNormForward (float64, straight from the formula), cpu::RmsNormForward and
// cuda::RmsNormForward, plus CostOf(args), and defines the dispatcher RmsNormForward(stream, args).
// Without CUDA no stub is needed. On kMeta nothing runs and the cost is counted. Rule for all
// backward kernels: `accumulate_dx` says whether a gradient is overwritten or added to; parameter
// gradients (dw) are always added to. An output tensor that is not wanted is undefined.
#pragma once

#include "core/device.h"
#include "core/tensor.h"
#include "core/trace.h"

namespace lt2 {

// What one call does: floating point operations, and bytes read and written if nothing is re-read.
// Pairs of tokens count as far as the formula needs them: causal ones, of attention and of a scan's
// chunks, are half the square.
struct Cost {
  double flops = 0, bytes = 0;
};

// Adds to the thread's MetaMeter.
void CountOnly(const Cost& cost);
[[noreturn]] void DieNoBackend(const char* kernel, Device device);

namespace cuda {
void NoteOperator(const char* name);  // core/cuda/operator_note.h
}

}  // namespace lt2

#ifdef LT2_HAS_CUDA
#define LT2_KERNEL_ON_CUDA(Name) \
  cuda::NoteOperator(#Name);     \
  ProfilerRange range(#Name);    \
  return cuda::Name(stream, args)
#else
#define LT2_KERNEL_ON_CUDA(Name) break
#endif

#define LT2_KERNEL(Name, Args)                         \
  namespace reference {                                \
  void Name(Stream&, const Args&);                     \
  }                                                    \
  namespace cpu {                                      \
  void Name(Stream&, const Args&);                     \
  }                                                    \
  namespace cuda {                                     \
  void Name(Stream&, const Args&);                     \
  }                                                    \
  Cost CostOf(const Args&);                            \
  inline void Name(Stream& stream, const Args& args) { \
    switch (stream.device.backend) {                   \
      case Backend::kReference:                        \
        return reference::Name(stream, args);          \
      case Backend::kCpu:                              \
        return cpu::Name(stream, args);                \
      case Backend::kMeta:                             \
        return CountOnly(CostOf(args));                \
      case Backend::kCuda:                             \
        LT2_KERNEL_ON_CUDA(Name);                      \
    }                                                  \
    DieNoBackend(#Name, stream.device);                \
  }
