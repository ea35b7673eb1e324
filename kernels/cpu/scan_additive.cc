#include "kernels/scan_additive.h"

#include "kernels/cpu/additive_gradients.h"
#include "kernels/cpu/additive_passes.h"
#include "kernels/cpu/channel_chunk.h"
#include "kernels/cpu/scalar_chunk.h"

namespace lt2::cpu {
namespace {

template <class T, class Chunk>
void Forward(const ScanAdditiveForwardArgs& a) {
  ForEachScanUnit(a.documents.count(), a.v_NGV.dim(1), a.v_NGV.dim(2), [&](const ScanUnit& unit) {
    if (a.o_NGV.defined() || FinalRow(a.final_DGKV, a.documents, unit.document) >= 0) {
      AdditiveForward<T, Chunk>(a, unit, Scratch::Restart()).Run();
    }
  });
}

template <class T, class Chunk>
void Backward(const ScanAdditiveBackwardArgs& a) {
  const bool gradients = AnyWanted({&a.dq_NHK, &a.dk_NHK, &a.dg_NG, &a.dg_NGK});
  const bool inputs = gradients || a.dv_NGV.to.defined();
  ForEachScanUnit(a.documents.count(), a.v_NGV.dim(1), a.v_NGV.dim(2), [&](const ScanUnit& unit) {
    if (inputs || InitialRow(a.dinitial_DGKV.to, unit.document) >= 0) {
      AdditiveReverse<T, Chunk>(a, unit, Scratch::Restart()).Run();
    }
  });
  if (!gradients) return;
#pragma omp parallel for schedule(dynamic) collapse(2)
  for (int64_t chunk = 0; chunk < a.documents.chunk_count(); ++chunk) {
    for (int64_t head = 0; head < a.q_NHK.dim(1); ++head) {
      AdditiveGradients<T, Chunk>(a, Scratch::Restart()).Run(chunk, head);
    }
  }
}

// One pass over the state: decay it and write k v^T, and read q.
template <class T>
void StepHead(int64_t k_width, int64_t v_width, const T* q, const T* k, const T* v, const T* decay,
              T scale, T* state, T* o) {
  std::fill(o, o + v_width, T(0));
  for (int64_t d = 0; d < k_width; ++d) {
    T* s = state + d * v_width;
    const T decay_d = decay[d], k_d = k[d], q_d = scale * q[d];
#pragma omp simd
    for (int64_t j = 0; j < v_width; ++j) {
      s[j] = decay_d * s[j] + k_d * v[j];
      o[j] += s[j] * q_d;
    }
  }
}

}  // namespace

void ScanAdditiveForward(Stream&, const ScanAdditiveForwardArgs& a) {
  ZeroAbsent(a.final_DGKV, a.documents);
  DispatchFloat(a.v_NGV.dtype(), [&]<class T>() {
    if (a.g_NGK.defined()) {
      Forward<T, ChannelChunk<T>>(a);
    } else {
      Forward<T, ScalarChunk<T>>(a);
    }
  });
}

void ScanAdditiveBackward(Stream&, const ScanAdditiveBackwardArgs& a) {
  ZeroAbsent(a.dinitial_DGKV, a.documents);
  DispatchFloat(a.v_NGV.dtype(), [&]<class T>() {
    if (a.g_NGK.defined()) {
      Backward<T, ChannelChunk<T>>(a);
    } else {
      Backward<T, ScalarChunk<T>>(a);
    }
  });
}

void ScanAdditiveStep(Stream&, const ScanAdditiveStepArgs& a) {
  const int64_t batch = a.v_BGV.dim(0), heads = a.v_BGV.dim(1), group = heads / a.q_BHK.dim(1);
  const int64_t k_width = a.q_BHK.dim(2), v_width = a.v_BGV.dim(2);
  constexpr int64_t kThreadingPays = 1 << 16;  // elements of state
  DispatchFloat(a.v_BGV.dtype(), [&]<class T>() {
#pragma omp parallel for collapse(2) if (a.state_BGKV.size() > kThreadingPays)
    for (int64_t b = 0; b < batch; ++b) {
      for (int64_t h = 0; h < heads; ++h) {
        T* decay = Scratch::Restart().Take<T>(k_width);
        const T* g =
            a.log_gamma_G.defined() ? a.log_gamma_G.data<T>() + h : HeadRows<T>(a.g_BG, b, h);
        Decays(g, HeadRows<T>(a.g_BGK, b, h), k_width, decay);
        StepHead(k_width, v_width, HeadRows<T>(a.q_BHK, b, h / group),
                 HeadRows<T>(a.k_BHK, b, h / group), HeadRows<T>(a.v_BGV, b, h), decay,
                 static_cast<T>(a.scale),
                 a.state_BGKV.data<T>() + (b * heads + h) * k_width * v_width,
                 HeadRows<T>(a.o_BGV, b, h));
      }
    }
  });
}

}  // namespace lt2::cpu
