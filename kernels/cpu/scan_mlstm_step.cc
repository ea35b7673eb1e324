#include "kernels/cpu/scan_rows.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/simd.h"
#include "kernels/scan_mlstm.h"

namespace lt2::cpu {
namespace {

// One pass over the state [K, V + 1]: keep and write it, and read q into y [V + 1].
template <class T>
void StepHead(int64_t k_width, int64_t v_width, const T* q, const T* k, const T* v, T i, T f,
              T scale, T* state, T* max, T* y, T* o) {
  const double kept = static_cast<double>(LogSigmoid(f)) + *max;
  const T next = static_cast<T>(std::max(kept, static_cast<double>(i)));
  const T keep = Exp(static_cast<T>(kept - next)), write = Exp(static_cast<T>(i - next));
  std::fill(y, y + v_width + 1, T(0));
  for (int64_t d = 0; d < k_width; ++d) {
    T* s = state + d * (v_width + 1);
    const T k_d = write * k[d], q_d = scale * q[d];
#pragma omp simd
    for (int64_t j = 0; j < v_width; ++j) {
      s[j] = keep * s[j] + k_d * v[j];
      y[j] += s[j] * q_d;
    }
    s[v_width] = keep * s[v_width] + k_d;
    y[v_width] += s[v_width] * q_d;
  }
  *max = next;
  const T inverse = T(1) / std::max(std::abs(y[v_width]), Exp(-next));
#pragma omp simd
  for (int64_t j = 0; j < v_width; ++j) o[j] = y[j] * inverse;
}

}  // namespace

void ScanMlstmStep(Stream&, const ScanMlstmStepArgs& a) {
  const int64_t batch = a.v_BHV.dim(0), heads = a.v_BHV.dim(1);
  const int64_t k_width = a.q_BHK.dim(2), v_width = a.v_BHV.dim(2);
  constexpr int64_t kThreadingPays = 1 << 16;  // elements of state
  DispatchFloat(a.v_BHV.dtype(), [&]<class T>() {
#pragma omp parallel for collapse(2) if (a.state_BHKW.size() > kThreadingPays)
    for (int64_t b = 0; b < batch; ++b) {
      for (int64_t h = 0; h < heads; ++h) {
        StepHead(k_width, v_width, HeadRows<T>(a.q_BHK, b, h), HeadRows<T>(a.k_BHK, b, h),
                 HeadRows<T>(a.v_BHV, b, h), *HeadRows<T>(a.i_BH, b, h), *HeadRows<T>(a.f_BH, b, h),
                 static_cast<T>(a.scale),
                 a.state_BHKW.data<T>() + (b * heads + h) * k_width * (v_width + 1),
                 HeadRows<T>(a.max_BH, b, h), Scratch::Restart().Take<T>(v_width + 1),
                 HeadRows<T>(a.o_BHV, b, h));
      }
    }
  });
}

}  // namespace lt2::cpu
