#include "kernels/squared_norm.h"

#include "kernels/cpu/blocks.h"

namespace lt2::cpu {
namespace {

double SumOfSquares(const Tensor& tensor) {
  const int64_t size = tensor.size(), block = 4 * kElementBlock;
  thread_local std::vector<double> scratch;
  std::vector<double>& sums = scratch;  // the caller's, for every thread of the loop
  sums.assign((size + block - 1) / block, 0.0);
  DispatchFloat(tensor.dtype(), [&]<class T>() {
    const T* x = tensor.data<T>();
    ForEachBlock(size, block, size, [&sums, x](int64_t i, int64_t begin, int64_t end) {
      double sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t j = begin; j < end; ++j) sum += double(x[j]) * double(x[j]);
      sums[i] = sum;
    });
  });
  double total = 0;
  for (double sum : sums) total += sum;
  return total;
}

}  // namespace

void SquaredNorms(Stream&, const SquaredNormsArgs& args) {
  CHECK_EQ(args.sums.size(), static_cast<int64_t>(args.x.size()));
  for (size_t i = 0; i < args.x.size(); ++i) args.sums.data<double>()[i] = SumOfSquares(args.x[i]);
}

}  // namespace lt2::cpu
