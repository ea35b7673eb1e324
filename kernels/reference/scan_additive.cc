// Token by token, both ways: the chunk algebra of the other backends has no part in this.
#include "kernels/scan_additive.h"

#include <cmath>
#include <numeric>

#include "kernels/reference/rows.h"

namespace lt2::reference {
namespace {

// exp(g) of a token's K channels; a log-decay per head is that of all its channels.
std::vector<double> Decay(const Tensor& g, const Tensor& g_channels, const Tensor& log_gamma,
                          int64_t token, int64_t head, int64_t k_width) {
  std::vector<double> decay(k_width, 0.0);
  if (g.defined()) decay.assign(k_width, *RowAt(g, token, head));
  if (log_gamma.defined()) decay.assign(k_width, log_gamma.data<double>()[head]);
  if (g_channels.defined()) {
    const double* from = RowAt(g_channels, token, head);
    decay.assign(from, from + k_width);
  }
  for (double& x : decay) x = std::exp(x);
  return decay;
}

template <class Args>
std::vector<double> DecayOf(const Args& a, int64_t token, int64_t head) {
  return Decay(a.g_NG, a.g_NGK, a.log_gamma_G, token, head, a.q_NHK.dim(2));
}

// S <- diag(decay) S + k v^T.
void Advance(const std::vector<double>& decay, const double* k, const double* v, int64_t v_width,
             double* s) {
  for (size_t d = 0; d < decay.size(); ++d) {
    for (int64_t j = 0; j < v_width; ++j) {
      s[d * v_width + j] = decay[d] * s[d * v_width + j] + k[d] * v[j];
    }
  }
}

// o = scale S^T q.
void Read(const double* q, int64_t k_width, int64_t v_width, double scale, const double* s,
          double* o) {
  for (int64_t j = 0; j < v_width; ++j) {
    o[j] = 0;
    for (int64_t d = 0; d < k_width; ++d) o[j] += scale * q[d] * s[d * v_width + j];
  }
}

}  // namespace

void ScanAdditiveForward(Stream&, const ScanAdditiveForwardArgs& a) {
  const int64_t K = a.q_NHK.dim(2), V = a.v_NGV.dim(2);
  const int64_t heads = a.v_NGV.dim(1), group = heads / a.q_NHK.dim(1);
  const int32_t* cu = a.documents.cu_seqlens().data<int32_t>();
  ZeroAbsent(a.final_DGKV, a.documents);
  for (int64_t i = 0; i < a.documents.count(); ++i) {
    for (int64_t h = 0; h < heads; ++h) {
      std::vector<double> s(K * V, 0.0);
      if (const double* s0 = RowAt(a.initial_DGKV, InitialRow(a.initial_DGKV, i), h))
        s.assign(s0, s0 + K * V);
      for (int64_t t = cu[i]; t < cu[i + 1]; ++t) {
        Advance(DecayOf(a, t, h), RowAt(a.k_NHK, t, h / group), RowAt(a.v_NGV, t, h), V, s.data());
        Read(RowAt(a.q_NHK, t, h / group), K, V, a.scale, s.data(), RowAt(a.o_NGV, t, h));
      }
      if (double* to = RowAt(a.final_DGKV, FinalRow(a.final_DGKV, a.documents, i), h))
        std::copy(s.begin(), s.end(), to);
    }
  }
}

void ScanAdditiveBackward(Stream&, const ScanAdditiveBackwardArgs& a) {
  ZeroAbsent(a.dinitial_DGKV, a.documents);
  const int64_t K = a.q_NHK.dim(2), V = a.v_NGV.dim(2), size = K * V;
  const int64_t heads = a.v_NGV.dim(1), group = heads / a.q_NHK.dim(1);
  const int32_t* cu = a.documents.cu_seqlens().data<int32_t>();
  for (int64_t i = 0; i < a.documents.count(); ++i) {
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t tokens = cu[i + 1] - cu[i];
      std::vector<double> s((tokens + 1) * size, 0.0);  // S before each token
      if (const double* s0 = RowAt(a.initial_DGKV, InitialRow(a.initial_DGKV, i), h))
        std::copy(s0, s0 + size, s.begin());
      for (int64_t n = 0; n < tokens; ++n) {
        double* next = &s[(n + 1) * size];
        std::copy(next - size, next, next);
        Advance(DecayOf(a, cu[i] + n, h), RowAt(a.k_NHK, cu[i] + n, h / group),
                RowAt(a.v_NGV, cu[i] + n, h), V, next);
      }
      std::vector<double> ds(size, 0.0);
      if (const double* end = RowAt(a.dfinal_DGKV, FinalRow(a.dfinal_DGKV, a.documents, i), h))
        ds.assign(end, end + size);
      for (int64_t n = tokens - 1; n >= 0; --n) {
        const int64_t t = cu[i] + n;
        const double *q = RowAt(a.q_NHK, t, h / group), *k = RowAt(a.k_NHK, t, h / group);
        const double *v = RowAt(a.v_NGV, t, h), *d_o = RowAt(a.do_NGV, t, h);
        const double *before = &s[n * size], *after = before + size;
        const std::vector<double> decay = DecayOf(a, t, h);
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
        AddRow(a.dv_NGV, t, h, dv);
        AddRow(a.dg_NGK, t, h, dg);
        const double dg_sum = std::accumulate(dg.begin(), dg.end(), 0.0);
        AddRow(a.dg_NG, t, h, {&dg_sum, 1});
      }
      AddRow(a.dinitial_DGKV, InitialRow(a.dinitial_DGKV.to, i), h, ds);
    }
  }
}

void ScanAdditiveStep(Stream&, const ScanAdditiveStepArgs& a) {
  const int64_t K = a.q_BHK.dim(2), V = a.v_BGV.dim(2);
  const int64_t heads = a.v_BGV.dim(1), group = heads / a.q_BHK.dim(1);
  for (int64_t b = 0; b < a.v_BGV.dim(0); ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      double* s = RowAt(a.state_BGKV, b, h);
      Advance(Decay(a.g_BG, a.g_BGK, a.log_gamma_G, b, h, K), RowAt(a.k_BHK, b, h / group),
              RowAt(a.v_BGV, b, h), V, s);
      Read(RowAt(a.q_BHK, b, h / group), K, V, a.scale, s, RowAt(a.o_BGV, b, h));
    }
  }
}

}  // namespace lt2::reference
