#include "kernels/add_bias.h"

#include "kernels/cpu/blocks.h"

namespace lt2::cpu {

void AddBiasForward(Stream&, const AddBiasForwardArgs& args) {
  const int64_t width = args.b.size(), size = args.x.size();
  DispatchFloat(args.x.dtype(), [&]<class T>() {
    const T *x_NC = args.x.data<T>(), *b = args.b.data<T>();
    T* y_NC = args.y.data<T>();
    ForEachBlock(size / width, 64, size, [=](int64_t, int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) {
        const T* x = x_NC + n * width;
        T* y = y_NC + n * width;
#pragma omp simd
        for (int64_t i = 0; i < width; ++i) y[i] = x[i] + b[i];
      }
    });
  });
}

void AddBiasBackward(Stream&, const AddBiasBackwardArgs& args) {
  const int64_t width = args.db.size(), size = args.dy.size(), rows = size / width;
  DispatchFloat(args.dy.dtype(), [&]<class T>() {
    const T* dy_NC = args.dy.data<T>();
    const RowSums<T> sums(rows, width);
    ForEachBlock(rows, sums.Block(rows), size, [=](int64_t block, int64_t begin, int64_t end) {
      T* db = sums.Line(block);
      for (int64_t n = begin; n < end; ++n) Store(db, dy_NC + n * width, width, true);
    });
    sums.AddTo(args.db.data<T>(), 0, width);
  });
}

}  // namespace lt2::cpu
