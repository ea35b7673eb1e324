#include "kernels/add.h"

#include "kernels/cpu/blocks.h"

namespace lt2::cpu {

void Add(Stream&, const AddArgs& args) {
  const int64_t size = args.y.size();
  DispatchFloat(args.y.dtype(), [&]<class T>() {
    const T *a = args.a.data<T>(), *b = args.b.data<T>();
    T* y = args.y.data<T>();
    ForEachBlock(size, kElementBlock, size, [=](int64_t, int64_t begin, int64_t end) {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) y[i] = a[i] + b[i];
    });
  });
}

}  // namespace lt2::cpu
