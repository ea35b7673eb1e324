#include "kernels/gemm.h"

namespace lt2 {

GemmSizes SizesOf(const GemmArgs& args) {
  const Shape &a = args.a.shape(), &b = args.b.shape(), &c = args.c.shape();
  const int64_t m = args.transpose_a ? a.back() : a.rows();
  const int64_t k = args.transpose_a ? a.rows() : a.back();
  const int64_t n = args.transpose_b ? b.rows() : b.back();
  CHECK_EQ(k, (args.transpose_b ? b.back() : b.rows())) << a << " times " << b;
  CHECK(c.rows() == m && c.back() == n) << a << " times " << b << " into " << c;
  CHECK(args.a.dtype() == args.b.dtype() &&
        (args.c.dtype() == args.a.dtype() || args.c.dtype() == AccumulatorOf(args.a.dtype())))
      << args.a.dtype() << " times " << args.b.dtype() << " into " << args.c.dtype();
  if (args.addend.defined()) {
    CHECK(!args.accumulate) << "an addend, or what is in c";
    CHECK_EQ(args.addend.size(), c.size());
    CHECK_EQ(args.addend.dtype(), args.c.dtype());
  }
  return {m, n, k};
}

Cost CostOf(const GemmArgs& args) {
  const auto [m, n, k] = SizesOf(args);
  const bool adds = args.accumulate || args.addend.defined();
  const double moved = args.a.bytes() + args.b.bytes() + args.c.bytes() * (adds ? 2 : 1);
  return {.flops = 2.0 * m * n * k, .bytes = moved};
}

}  // namespace lt2
