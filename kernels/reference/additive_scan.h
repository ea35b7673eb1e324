// S_t = diag(exp g_t) S_{t-1} + k_t v_t^T, o_t = scale S_t^T q_t, token by token and both ways: the
// chunk algebra of the other backends has no part in this.
#pragma once

#include <vector>

#include "core/tensor.h"
#include "kernels/scan.h"

namespace lt2::reference {

// Row (i, j) of x [I, J, …]; null where x is undefined.
inline double* RowAt(const Tensor& x, int64_t i, int64_t j) {
  if (!x.defined()) return nullptr;
  return x.data<double>() + (i * x.dim(1) + j) * (x.size() / (x.dim(0) * x.dim(1)));
}

inline void AddRow(const GradInto& grad, int64_t i, int64_t j, const std::vector<double>& values,
                   bool first) {
  double* to = RowAt(grad.to, i, j);
  for (size_t n = 0; n < values.size() && to != nullptr; ++n) {
    to[n] = (first && !grad.accumulate ? 0.0 : to[n]) + values[n];
  }
}

// decay: exp(g) of the K channels.
inline void AdditiveAdvance(const std::vector<double>& decay, const double* k, const double* v,
                            int64_t v_width, double* s) {
  for (size_t d = 0; d < decay.size(); ++d) {
    for (int64_t j = 0; j < v_width; ++j) {
      s[d * v_width + j] = decay[d] * s[d * v_width + j] + k[d] * v[j];
    }
  }
}

inline void AdditiveRead(const double* q, int64_t k_width, int64_t v_width, double scale,
                         const double* s, double* o) {
  for (int64_t j = 0; j < v_width; ++j) {
    o[j] = 0;
    for (int64_t d = 0; d < k_width; ++d) o[j] += scale * q[d] * s[d * v_width + j];
  }
}

// decay_of(token, head) -> the K factors.
template <class Args, class DecayOf>
void AdditiveForward(const Args& a, const DecayOf& decay_of) {
  const int64_t K = a.q_NHK.dim(2), V = a.v_NGV.dim(2);
  const int64_t heads = a.v_NGV.dim(1), group = heads / a.q_NHK.dim(1);
  const int32_t* cu = a.documents.cu_seqlens().template data<int32_t>();
  if (a.final_DGKV.defined()) a.final_DGKV.Zero();
  for (int64_t i = 0; i < a.documents.count(); ++i) {
    for (int64_t h = 0; h < heads; ++h) {
      std::vector<double> s(K * V, 0.0);
      if (const double* s0 = RowAt(a.initial_DGKV, i, h)) s.assign(s0, s0 + K * V);
      for (int64_t t = cu[i]; t < cu[i + 1]; ++t) {
        AdditiveAdvance(decay_of(t, h), RowAt(a.k_NHK, t, h / group), RowAt(a.v_NGV, t, h), V,
                        s.data());
        AdditiveRead(RowAt(a.q_NHK, t, h / group), K, V, a.scale, s.data(), RowAt(a.o_NGV, t, h));
      }
      if (double* to = RowAt(a.final_DGKV, i, h)) std::copy(s.begin(), s.end(), to);
    }
  }
}

// take_dg(token, head, dg) is given the gradient of the K channels' log-decays.
template <class Args, class DecayOf, class TakeDecayGradient>
void AdditiveBackward(const Args& a, const DecayOf& decay_of, const TakeDecayGradient& take_dg) {
  const int64_t K = a.q_NHK.dim(2), V = a.v_NGV.dim(2), size = K * V;
  const int64_t heads = a.v_NGV.dim(1), group = heads / a.q_NHK.dim(1);
  const int32_t* cu = a.documents.cu_seqlens().template data<int32_t>();
  for (int64_t i = 0; i < a.documents.count(); ++i) {
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t tokens = cu[i + 1] - cu[i];
      std::vector<double> s((tokens + 1) * size, 0.0);  // S before each token
      if (const double* s0 = RowAt(a.initial_DGKV, i, h)) std::copy(s0, s0 + size, s.begin());
      for (int64_t n = 0; n < tokens; ++n) {
        double* next = &s[(n + 1) * size];
        std::copy(next - size, next, next);
        AdditiveAdvance(decay_of(cu[i] + n, h), RowAt(a.k_NHK, cu[i] + n, h / group),
                        RowAt(a.v_NGV, cu[i] + n, h), V, next);
      }
      std::vector<double> ds(size, 0.0);
      if (const double* end = RowAt(a.dfinal_DGKV, i, h)) ds.assign(end, end + size);
      for (int64_t n = tokens - 1; n >= 0; --n) {
        const int64_t t = cu[i] + n;
        const double *q = RowAt(a.q_NHK, t, h / group), *k = RowAt(a.k_NHK, t, h / group);
        const double *v = RowAt(a.v_NGV, t, h), *d_o = RowAt(a.do_NGV, t, h);
        const double *before = &s[n * size], *after = before + size;
        const std::vector<double> decay = decay_of(t, h);
        std::vector<double> dq(K, 0.0), dk(K, 0.0), dv(V, 0.0), dg(K, 0.0);
        for (int64_t d = 0; d < K; ++d) {
          for (int64_t j = 0; j < V; ++j) {
            double& ds_dj = ds[d * V + j];
            if (d_o != nullptr) {
              dq[d] += a.scale * after[d * V + j] * d_o[j];
              ds_dj += a.scale * q[d] * d_o[j];
            }
            dk[d] += ds_dj * v[j];
            dv[j] += ds_dj * k[d];
            ds_dj *= decay[d];
            dg[d] += ds_dj * before[d * V + j];
          }
        }
        AddRow(a.dq_NHK, t, h / group, dq, h % group == 0);
        AddRow(a.dk_NHK, t, h / group, dk, h % group == 0);
        AddRow(a.dv_NGV, t, h, dv, true);
        take_dg(t, h, dg);
      }
      AddRow(a.dinitial_DGKV, i, h, ds, true);
    }
  }
  if (a.dinitial_DGKV.to.defined() && !a.dinitial_DGKV.accumulate) {
    a.dinitial_DGKV.to.Rows(a.documents.count(), a.documents.capacity()).Zero();
  }
}

template <class Args, class DecayOf>
void AdditiveStep(const Args& a, const DecayOf& decay_of) {
  const int64_t K = a.q_BHK.dim(2), V = a.v_BGV.dim(2);
  const int64_t heads = a.v_BGV.dim(1), group = heads / a.q_BHK.dim(1);
  for (int64_t b = 0; b < a.v_BGV.dim(0); ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      double* s = RowAt(a.state_BGKV, b, h);
      AdditiveAdvance(decay_of(b, h), RowAt(a.k_BHK, b, h / group), RowAt(a.v_BGV, b, h), V, s);
      AdditiveRead(RowAt(a.q_BHK, b, h / group), K, V, a.scale, s, RowAt(a.o_BGV, b, h));
    }
  }
}

}  // namespace lt2::reference
