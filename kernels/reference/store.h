// What every reference kernel does with its results.
#pragma once

#include "core/tensor.h"

namespace lt2::reference {

inline double* DataOrNull(const Tensor& tensor) {
  return tensor.defined() ? tensor.data<double>() : nullptr;
}

// to[i] = value, or += where a gradient is there already; nothing where nobody wants it.
inline void Store(double* to, int64_t i, double value, bool accumulate) {
  if (to != nullptr) to[i] = accumulate ? to[i] + value : value;
}

}  // namespace lt2::reference
