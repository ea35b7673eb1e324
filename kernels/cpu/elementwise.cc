#include "kernels/elementwise.h"

#include "kernels/cpu/blocks.h"

namespace lt2::cpu {

void Accumulate(Stream&, const AccumulateArgs& args) {
  const int64_t size = args.to.size();
  CHECK_EQ(size, args.from.size());
  DispatchFloat(args.to.dtype(), [&]<class T>() {
    T* to = args.to.data<T>();
    const T* from = args.from.data<T>();
    ForEachBlock(size, kElementBlock, size, [=](int64_t, int64_t begin, int64_t end) {
      Store(to + begin, from + begin, end - begin, true);
    });
  });
}

void Fill(Stream&, const FillArgs& args) {
  const int64_t size = args.to.size();
  DispatchFloat(args.to.dtype(), [&]<class T>() {
    T* to = args.to.data<T>();
    ForEachBlock(size, kElementBlock, size,
                 [=, value = static_cast<T>(args.value)](int64_t, int64_t begin, int64_t end) {
                   std::fill(to + begin, to + end, value);
                 });
  });
}

void Scale(Stream&, const ScaleArgs& args) {
  const int64_t size = args.to.size();
  DispatchFloat(args.to.dtype(), [&]<class T>() {
    T* to = args.to.data<T>();
    ForEachBlock(size, kElementBlock, size,
                 [=, factor = static_cast<T>(args.factor)](int64_t, int64_t begin, int64_t end) {
#pragma omp simd
                   for (int64_t i = begin; i < end; ++i) to[i] *= factor;
                 });
  });
}

void Cast(Stream&, const CastArgs& args) {
  const int64_t size = args.to.size();
  CHECK_EQ(size, args.from.size());
  const float* from = args.from.data<float>();
  BFloat16* to = args.to.data<BFloat16>();
  ForEachBlock(size, kElementBlock, size, [=](int64_t, int64_t begin, int64_t end) {
    std::transform(from + begin, from + end, to + begin, BFloat16::Of);
  });
}

}  // namespace lt2::cpu
