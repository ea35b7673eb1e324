#include "kernels/beta_gate.h"

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/simd.h"

namespace lt2::cpu {
namespace {

template <class T>
void Forward(const BetaGateForwardArgs& args) {
  const T* b = args.b.data<T>();
  T* beta = args.beta.data<T>();
  const T scale = static_cast<T>(args.scale);
  const int64_t size = args.b.size();
  ForEachBlock(size, kElementBlock, size, [=](int64_t, int64_t begin, int64_t end) {
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) beta[i] = scale * Sigmoid(b[i]);
  });
}

template <class T>
void Backward(const BetaGateBackwardArgs& args) {
  if (!args.db.defined()) return;
  const T *dbeta = args.dbeta.data<T>(), *b = args.b.data<T>();
  T* db = args.db.data<T>();
  const T scale = static_cast<T>(args.scale);
  const bool accumulate = args.accumulate_db;
  const int64_t size = args.b.size();
  ForEachBlock(size, kElementBlock, size, [=](int64_t, int64_t begin, int64_t end) {
    T slope[kElementBlock];
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) {
      const T s = Sigmoid(b[i]);
      slope[i - begin] = dbeta[i] * scale * s * (T(1) - s);
    }
    Store(db + begin, slope, end - begin, accumulate);
  });
}

}  // namespace

void BetaGateForward(Stream&, const BetaGateForwardArgs& args) {
  DispatchFloat(args.b.dtype(), [&]<class T>() { Forward<T>(args); });
}

void BetaGateBackward(Stream&, const BetaGateBackwardArgs& args) {
  DispatchFloat(args.b.dtype(), [&]<class T>() { Backward<T>(args); });
}

}  // namespace lt2::cpu
