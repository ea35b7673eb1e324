// Rows of [I, J, …] tensors, which the token-by-token scans go through.
#pragma once

#include <span>

#include "kernels/scan.h"

namespace lt2::reference {

// Row (i, j) of x [I, J, …]; null where x is undefined, or i is -1.
inline double* RowAt(const Tensor& x, int64_t i, int64_t j) {
  if (!x.defined() || i < 0) return nullptr;
  return x.data<double>() + (i * x.dim(1) + j) * (x.size() / (x.dim(0) * x.dim(1)));
}

// Row (i, j) becomes `values`, or has them added: where a gradient is there already, and for all
// but the first of several shares.
inline void AddRow(const GradInto& grad, int64_t i, int64_t j, std::span<const double> values,
                   bool first = true) {
  double* to = RowAt(grad.to, i, j);
  for (size_t n = 0; n < values.size() && to != nullptr; ++n) {
    to[n] = (first && !grad.accumulate ? 0.0 : to[n]) + values[n];
  }
}

}  // namespace lt2::reference
