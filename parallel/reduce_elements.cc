#include "parallel/reduce_elements.h"

#include <algorithm>

namespace lt2 {
namespace {

constexpr int64_t kBlock = 1024;  // stays in the first-level cache

// A type keeps what is added up; bf16 does not.
template <class T>
struct SumOf {
  using Type = T;
  static T Round(T sum) { return sum; }
};
template <>
struct SumOf<BFloat16> {
  using Type = float;
  static BFloat16 Round(float sum) { return BFloat16::Of(sum); }
};

template <class T, class Op>
void Run(std::span<const void* const> in, void* out, int64_t elements, Op op) {
  using Sum = typename SumOf<T>::Type;
  Sum sum[kBlock];
  for (int64_t begin = 0; begin < elements; begin += kBlock) {
    const int64_t n = std::min(kBlock, elements - begin);
    std::copy_n(static_cast<const T*>(in[0]) + begin, n, sum);
    for (size_t r = 1; r < in.size(); ++r) {
      const T* other = static_cast<const T*>(in[r]) + begin;
      for (int64_t i = 0; i < n; ++i) sum[i] = op(sum[i], other[i]);
    }
    std::transform(sum, sum + n, static_cast<T*>(out) + begin, SumOf<T>::Round);
  }
}

template <class T>
void RunOp(std::span<const void* const> in, void* out, int64_t elements, Reduction op) {
  using Sum = typename SumOf<T>::Type;
  switch (op) {
    case Reduction::kSum:
      return Run<T>(in, out, elements, [](Sum a, Sum b) { return static_cast<Sum>(a + b); });
    case Reduction::kMin:
      return Run<T>(in, out, elements, [](Sum a, Sum b) { return b < a ? b : a; });
    case Reduction::kMax:
      return Run<T>(in, out, elements, [](Sum a, Sum b) { return a < b ? b : a; });
  }
}

}  // namespace

void ReduceInOrder(std::span<const void* const> in, void* out, int64_t elements, DType dtype,
                   Reduction op) {
  switch (dtype) {
    case DType::kF32:
      return RunOp<float>(in, out, elements, op);
    case DType::kBF16:
      return RunOp<BFloat16>(in, out, elements, op);
    case DType::kF64:
      return RunOp<double>(in, out, elements, op);
    case DType::kI32:
      return RunOp<int32_t>(in, out, elements, op);
    case DType::kU8:
      return RunOp<uint8_t>(in, out, elements, op);
    default:
      CHECK(false) << "no reduction for dtype " << dtype;
  }
}

}  // namespace lt2
