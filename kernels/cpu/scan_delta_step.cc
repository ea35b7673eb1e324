#include "kernels/cpu/chunk_decay.h"
#include "kernels/cpu/scratch.h"
#include "kernels/scan_delta.h"

namespace lt2::cpu {
namespace {

// Two passes over the state: decay it and read k, then write k u^T and read q.
template <class T>
void StepHead(int64_t k_width, int64_t v_width, const T* q, const T* k, const T* v, const T* decay,
              T beta, T scale, T* state, T* u, T* o) {
  std::copy(v, v + v_width, u);
  for (int64_t d = 0; d < k_width; ++d) {
    T* s = state + d * v_width;
    const T k_d = k[d], decay_d = decay[d];
#pragma omp simd
    for (int64_t j = 0; j < v_width; ++j) {
      s[j] *= decay_d;
      u[j] -= s[j] * k_d;
    }
  }
  Scale(beta, v_width, u);
  std::fill(o, o + v_width, T(0));
  for (int64_t d = 0; d < k_width; ++d) {
    T* s = state + d * v_width;
    const T k_d = k[d], q_d = scale * q[d];
#pragma omp simd
    for (int64_t j = 0; j < v_width; ++j) {
      s[j] += k_d * u[j];
      o[j] += s[j] * q_d;
    }
  }
}

}  // namespace

void ScanDeltaStep(Stream&, const ScanDeltaStepArgs& a) {
  const int64_t batch = a.v_BGV.dim(0), heads = a.v_BGV.dim(1), group = heads / a.q_BHK.dim(1);
  const int64_t k_width = a.q_BHK.dim(2), v_width = a.v_BGV.dim(2);
  constexpr int64_t kThreadingPays = 1 << 16;  // elements of state
  DispatchFloat(a.v_BGV.dtype(), [&]<class T>() {
#pragma omp parallel for collapse(2) if (a.state_BGKV.size() > kThreadingPays)
    for (int64_t b = 0; b < batch; ++b) {
      for (int64_t h = 0; h < heads; ++h) {
        Scratch& scratch = Scratch::Restart();
        T *u = scratch.Take<T>(v_width), *decay = scratch.Take<T>(k_width);
        Decays(HeadRows<T>(a.g_BG, b, h), HeadRows<T>(a.g_BGK, b, h), k_width, decay);
        StepHead(k_width, v_width, HeadRows<T>(a.q_BHK, b, h / group),
                 HeadRows<T>(a.k_BHK, b, h / group), HeadRows<T>(a.v_BGV, b, h), decay,
                 *HeadRows<T>(a.beta_BG, b, h), static_cast<T>(a.scale),
                 a.state_BGKV.data<T>() + (b * heads + h) * k_width * v_width, u,
                 HeadRows<T>(a.o_BGV, b, h));
      }
    }
  });
}

}  // namespace lt2::cpu
