#include "kernels/first_token_mass.h"

#include <algorithm>

#include "kernels/cpu/simd.h"

namespace lt2::cpu {
namespace {

// Called at logging intervals only: one thread, sums in double.
template <class T>
void Run(const FirstTokenMassArgs& args) {
  const int64_t N = args.q_NHD.dim(0), H = args.q_NHD.dim(1), D = args.q_NHD.dim(2);
  const int64_t G = args.k_NGD.dim(1), window = args.options.window;
  const int64_t query_begin = args.documents.query_begin();
  const int32_t* positions = args.documents.whole_positions().data<int32_t>() + query_begin;
  double* mass = args.mass.data<double>();
  for (int64_t i = 0; i < N; ++i) {
    if (positions[i] == 0) continue;
    mass[1] += static_cast<double>(H);
    const int64_t first = query_begin + i - positions[i];
    if (first < 0 || (window > 0 && positions[i] >= window)) continue;
    for (int64_t h = 0; h < H; ++h) {
      const T* q = args.q_NHD.data<T>() + (i * H + h) * D;
      const T* k = args.k_NGD.data<T>() + (first * G + h / (H / G)) * D;
      T score = 0;
#pragma omp simd reduction(+ : score)
      for (int64_t d = 0; d < D; ++d) score += q[d] * k[d];
      mass[0] += Exp(static_cast<T>(args.options.scale) * score - args.lse_NH.data<T>()[i * H + h]);
    }
  }
}

}  // namespace

void FirstTokenMass(Stream&, const FirstTokenMassArgs& args) {
  DispatchFloat(args.q_NHD.dtype(), [&]<class T>() { Run<T>(args); });
}

}  // namespace lt2::cpu
