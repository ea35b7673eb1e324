#include "kernels/gemm.h"

#include "kernels/reference/store.h"

namespace lt2::reference {

void Gemm(Stream&, const GemmArgs& args) {
  const auto [m, n, k] = SizesOf(args);
  const double *a = args.a.data<double>(), *b = args.b.data<double>();
  double* c = args.c.data<double>();
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (int64_t l = 0; l < k; ++l) {
        sum += a[args.transpose_a ? l * m + i : i * k + l] *
               b[args.transpose_b ? j * k + l : l * n + j];
      }
      if (args.addend.defined()) sum += args.addend.data<double>()[i * n + j];
      Store(c, i * n + j, sum, args.accumulate);
    }
  }
}

}  // namespace lt2::reference
