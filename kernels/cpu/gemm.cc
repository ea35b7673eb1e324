#include "kernels/gemm.h"

#include "kernels/cpu/blas.h"

namespace lt2::cpu {

void Gemm(Stream&, const GemmArgs& args) {
  const auto [m, n, k] = SizesOf(args);
  DispatchFloat(args.c.dtype(), [&, m = m, n = n, k = k]<class T>() {
    Gemm<T>(args.transpose_a, args.transpose_b, m, n, k, T(1), args.a.data<T>(),
            args.transpose_a ? m : k, args.b.data<T>(), args.transpose_b ? k : n,
            args.accumulate ? T(1) : T(0), args.c.data<T>(), n);
  });
}

}  // namespace lt2::cpu
