#include "kernels/squared_norm.h"

#include "kernels/cpu/blocks.h"

namespace lt2::cpu {

void SquaredNorm(Stream&, const SquaredNormArgs& args) {
  const int64_t size = args.x.size(), block = 4 * kElementBlock;
  thread_local std::vector<double> scratch;
  std::vector<double>& sums = scratch;  // the caller's, for every thread of the loop
  sums.assign((size + block - 1) / block, 0.0);
  DispatchFloat(args.x.dtype(), [&]<class T>() {
    const T* x = args.x.data<T>();
    ForEachBlock(size, block, size, [&sums, x](int64_t i, int64_t begin, int64_t end) {
      double sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t j = begin; j < end; ++j) sum += double(x[j]) * double(x[j]);
      sums[i] = sum;
    });
  });
  double total = args.accumulate ? *args.sum.data<double>() : 0;
  for (double sum : sums) total += sum;
  *args.sum.data<double>() = total;
}

}  // namespace lt2::cpu
