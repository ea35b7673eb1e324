// The additive scans spread over threads, for either kind of chunk.
#pragma once

#include "kernels/cpu/additive_gradients.h"
#include "kernels/cpu/additive_passes.h"

namespace lt2::cpu {

template <template <class> class Chunk, class Args>
void RunAdditiveForward(const Args& a) {
  const int64_t documents = a.documents.count();
  if (a.final_DGKV.defined() && documents < a.documents.capacity()) {
    a.final_DGKV.Rows(documents, a.documents.capacity()).Zero();
  }
  DispatchFloat(a.v_NGV.dtype(), [&]<class T>() {
    ForEachDeltaUnit(documents, a.v_NGV.dim(1), a.v_NGV.dim(2), [&](const DeltaUnit& unit) {
      AdditiveForward<T, Chunk<T>, Args>(a, unit, Scratch::Restart()).Run();
    });
  });
}

// dg: a's gradient of the decays.
template <template <class> class Chunk, class Args>
void RunAdditiveBackward(const Args& a, const GradInto& dg) {
  const int64_t documents = a.documents.count(), key_heads = a.q_NHK.dim(1);
  if (a.dinitial_DGKV.to.defined() && !a.dinitial_DGKV.accumulate &&
      documents < a.documents.capacity()) {
    a.dinitial_DGKV.to.Rows(documents, a.documents.capacity()).Zero();
  }
  DispatchFloat(a.v_NGV.dtype(), [&]<class T>() {
    ForEachDeltaUnit(documents, a.v_NGV.dim(1), a.v_NGV.dim(2), [&](const DeltaUnit& unit) {
      AdditiveReverse<T, Chunk<T>, Args>(a, unit, Scratch::Restart()).Run();
    });
    if (!a.dq_NHK.to.defined() && !a.dk_NHK.to.defined() && !dg.to.defined()) return;
#pragma omp parallel for schedule(dynamic) collapse(2)
    for (int64_t chunk = 0; chunk < a.documents.chunk_count(); ++chunk) {
      for (int64_t head = 0; head < key_heads; ++head) {
        AdditiveGradients<T, Chunk<T>, Args>(a, Scratch::Restart()).Run(chunk, head, dg);
      }
    }
  });
}

// One token for each sequence and head: S = decay ⊙ S + k v^T, o = scale S^T q.
// decay_of(b, h) -> the factor of key channel d.
template <class T, class Args, class DecayOf>
void RunAdditiveStep(const Args& a, const DecayOf& decay_of) {
  const int64_t batch = a.v_BGV.dim(0), heads = a.v_BGV.dim(1), group = heads / a.q_BHK.dim(1);
  const int64_t k_width = a.q_BHK.dim(2), v_width = a.v_BGV.dim(2);
  const T scale = static_cast<T>(a.scale);
  constexpr int64_t kThreadingPays = 1 << 16;  // elements of state
#pragma omp parallel for collapse(2) if (a.state_BGKV.size() > kThreadingPays)
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      const T *q = HeadRows<T>(a.q_BHK, b, h / group), *k = HeadRows<T>(a.k_BHK, b, h / group);
      const T* v = HeadRows<T>(a.v_BGV, b, h);
      T* state = a.state_BGKV.template data<T>() + (b * heads + h) * k_width * v_width;
      T* o = HeadRows<T>(a.o_BGV, b, h);
      const auto decay = decay_of(b, h);
      std::fill(o, o + v_width, T(0));
      for (int64_t d = 0; d < k_width; ++d) {
        T* s = state + d * v_width;
        const T decay_d = decay(d), k_d = k[d], q_d = scale * q[d];
#pragma omp simd
        for (int64_t j = 0; j < v_width; ++j) {
          s[j] = decay_d * s[j] + k_d * v[j];
          o[j] += s[j] * q_d;
        }
      }
    }
  }
}

}  // namespace lt2::cpu
