#include "kernels/attention_step.h"

#include <cmath>

#include "kernels/cpu/simd.h"

namespace lt2::cpu {
namespace {

// One query head; keys and values of its group are rows `stride` elements apart.
template <class T>
void AttendOne(const T* q, const T* k, const T* v, int64_t keys, int64_t k_stride, int64_t v_stride,
               int64_t D, int64_t E, T scale, T* o) {
  thread_local std::vector<T> scores;
  if (static_cast<int64_t>(scores.size()) < keys) scores.resize(keys);
  T* p = scores.data();
  T largest = -INFINITY, sum = 0;
  for (int64_t s = 0; s < keys; ++s) {
    T score = 0;
#pragma omp simd reduction(+ : score)
    for (int64_t d = 0; d < D; ++d) score += q[d] * k[s * k_stride + d];
    p[s] = scale * score;
    largest = std::max(largest, p[s]);
  }
#pragma omp simd reduction(+ : sum)
  for (int64_t s = 0; s < keys; ++s) sum += p[s] = Exp(p[s] - largest);
  std::fill(o, o + E, T(0));
  for (int64_t s = 0; s < keys; ++s) {
    const T weight = p[s] / sum;
#pragma omp simd
    for (int64_t e = 0; e < E; ++e) o[e] += weight * v[s * v_stride + e];
  }
}

template <class T>
void Run(const AttentionStepArgs& args) {
  const int64_t B = args.q_BHD.dim(0), H = args.q_BHD.dim(1), D = args.q_BHD.dim(2);
  const int64_t S = args.k_BSGD.dim(1), G = args.k_BSGD.dim(2), E = args.v_BSGE.dim(3);
  const int32_t* lengths = args.lengths_B.data<int32_t>();
  const int64_t window = args.options.window;
#pragma omp parallel for collapse(2) schedule(static) if (B * H * S * D > 65536)
  for (int64_t b = 0; b < B; ++b) {
    for (int64_t h = 0; h < H; ++h) {
      const int64_t length = lengths[b];
      CHECK(length >= 0 && length <= S) << "length " << length << " of capacity " << S;
      const int64_t first = window > 0 ? std::max<int64_t>(0, length - window) : 0;
      const int64_t row = (b * S + first) * G + h / (H / G);
      AttendOne<T>(args.q_BHD.data<T>() + (b * H + h) * D, args.k_BSGD.data<T>() + row * D,
                   args.v_BSGE.data<T>() + row * E, length - first, G * D, G * E, D, E,
                   static_cast<T>(args.options.scale), args.o_BHE.data<T>() + (b * H + h) * E);
    }
  }
}

}  // namespace

void AttentionStep(Stream&, const AttentionStepArgs& args) {
  DispatchFloat(args.q_BHD.dtype(), [&]<class T>() { Run<T>(args); });
}

}  // namespace lt2::cpu
