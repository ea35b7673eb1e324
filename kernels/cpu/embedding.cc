#include "kernels/embedding.h"

#include "kernels/cpu/blocks.h"

namespace lt2::cpu {
namespace {

template <class T>
void Forward(const EmbeddingForwardArgs& args) {
  const int64_t d = args.w.dim(1), here = args.w.dim(0), count = args.ids.size();
  const int64_t vocabulary = args.vocabulary, first_row = args.first_row;
  const int32_t* ids = args.ids.data<int32_t>();
  const T* w = args.w.data<T>();
  T* y = args.y.data<T>();
  ForEachBlock(count, 64, count * d, [=](int64_t, int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      CHECK(0 <= ids[n] && ids[n] < vocabulary) << "id " << ids[n] << " of " << vocabulary;
      const int64_t row = ids[n] - first_row;
      if (0 <= row && row < here) {
        std::copy(w + row * d, w + (row + 1) * d, y + n * d);
      } else {
        std::fill(y + n * d, y + (n + 1) * d, T(0));
      }
    }
  });
}

// Each share of the vocabulary is one thread's, which adds in order of tokens whatever the shares.
template <class T>
void Backward(const EmbeddingBackwardArgs& args) {
  constexpr int64_t kShares = 16;
  const int64_t d = args.dw.dim(1), here = args.dw.dim(0), count = args.ids.size();
  const int64_t first_row = args.first_row;
  const int32_t* ids = args.ids.data<int32_t>();
  const T* dy = args.dy.data<T>();
  T* dw = args.dw.data<T>();
  ForEachBlock(kShares, 1, count * d, [=](int64_t share, int64_t, int64_t) {
    for (int64_t n = 0; n < count; ++n) {
      const int64_t of = ids[n] - first_row;
      if (of < 0 || of >= here || of % kShares != share) continue;
      T* row = dw + of * d;
#pragma omp simd
      for (int64_t i = 0; i < d; ++i) row[i] += dy[n * d + i];
    }
  });
}

}  // namespace

void EmbeddingForward(Stream&, const EmbeddingForwardArgs& args) {
  DispatchFloat(args.w.dtype(), [&]<class T>() { Forward<T>(args); });
}

void EmbeddingBackward(Stream&, const EmbeddingBackwardArgs& args) {
  DispatchFloat(args.dw.dtype(), [&]<class T>() { Backward<T>(args); });
}

}  // namespace lt2::cpu
