// Token by token, both ways: the chunk algebra of the other backends has no part in this.
#include "kernels/scan_delta.h"

#include <cmath>

#include "kernels/reference/rows.h"

namespace lt2::reference {
namespace {

struct Head {
  int64_t k, v;
  double scale;
  bool per_channel;  // g is [K]
};

// exp(g) of key channel d; g null: no decay.
double DecayOf(const Head& head, const double* g, int64_t d) {
  return g != nullptr ? std::exp(g[head.per_channel ? d : 0]) : 1.0;
}

const Tensor& Either(const Tensor& g, const Tensor& g_channels) {
  return g_channels.defined() ? g_channels : g;
}

// S <- exp(g) S, u = beta (v - S^T k), S <- S + k u^T, o = scale S^T q. `error` is u / beta.
void Advance(const Head& head, const double* q, const double* k, const double* v, const double* g,
             double beta, double* s, double* error, double* o) {
  for (int64_t i = 0; i < head.k * head.v; ++i) s[i] *= DecayOf(head, g, i / head.v);
  for (int64_t j = 0; j < head.v; ++j) {
    error[j] = v[j];
    for (int64_t d = 0; d < head.k; ++d) error[j] -= s[d * head.v + j] * k[d];
  }
  for (int64_t j = 0; j < head.v; ++j) {
    double sum = 0;
    for (int64_t d = 0; d < head.k; ++d) {
      s[d * head.v + j] += k[d] * beta * error[j];
      sum += s[d * head.v + j] * q[d];
    }
    if (o != nullptr) o[j] = head.scale * sum;
  }
}

// What is known of dS_t after o_t, turned into the gradients at t and dS_{t-1}. s_before = S_{t-1}.
struct TokenGrad {
  std::vector<double> dq, dk, dv, dg;
  double dbeta = 0;
};
TokenGrad Retreat(const Head& head, const double* q, const double* k, const double* v,
                  const double* g, double beta, const double* s_before, const double* d_o,
                  std::vector<double>& ds) {
  const int64_t K = head.k, V = head.v;
  std::vector<double> s(s_before, s_before + K * V), error(V);
  Advance(head, q, k, v, g, beta, s.data(), error.data(), nullptr);
  TokenGrad grad{.dq = std::vector<double>(K),
                 .dk = std::vector<double>(K),
                 .dv = std::vector<double>(V),
                 .dg = std::vector<double>(head.per_channel ? K : 1)};
  for (int64_t d = 0; d < K; ++d) {
    for (int64_t j = 0; j < V && d_o != nullptr; ++j) {
      grad.dq[d] += head.scale * s[d * V + j] * d_o[j];
      ds[d * V + j] += head.scale * q[d] * d_o[j];
    }
  }
  for (int64_t j = 0; j < V; ++j) {  // through u_j = beta error_j
    double du = 0;
    for (int64_t d = 0; d < K; ++d) du += ds[d * V + j] * k[d];
    grad.dv[j] = beta * du;
    grad.dbeta += du * error[j];
    for (int64_t d = 0; d < K; ++d) {
      const double decay = DecayOf(head, g, d), decayed = decay * s_before[d * V + j];
      grad.dk[d] += ds[d * V + j] * beta * error[j] - beta * du * decayed;
      ds[d * V + j] -= k[d] * beta * du;  // now with respect to the decayed state
      grad.dg[head.per_channel ? d : 0] += ds[d * V + j] * decayed;
      ds[d * V + j] *= decay;
    }
  }
  return grad;
}

}  // namespace

void ScanDeltaForward(Stream&, const ScanDeltaForwardArgs& a) {
  ZeroAbsent(a.final_DGKV, a.documents);
  const Head sizes{a.q_NHK.dim(2), a.v_NGV.dim(2), a.scale, a.g_NGK.defined()};
  const int64_t heads = a.v_NGV.dim(1), group = heads / a.q_NHK.dim(1);
  const int32_t* cu = a.documents.cu_seqlens().data<int32_t>();
  std::vector<double> error(sizes.v);
  for (int64_t d = 0; d < a.documents.count(); ++d) {
    for (int64_t h = 0; h < heads; ++h) {
      std::vector<double> s(sizes.k * sizes.v, 0.0);
      if (const double* s0 = RowAt(a.initial_DGKV, InitialRow(a.initial_DGKV, d), h))
        s.assign(s0, s0 + s.size());
      for (int64_t t = cu[d]; t < cu[d + 1]; ++t) {
        Advance(sizes, RowAt(a.q_NHK, t, h / group), RowAt(a.k_NHK, t, h / group),
                RowAt(a.v_NGV, t, h), RowAt(Either(a.g_NG, a.g_NGK), t, h), *RowAt(a.beta_NG, t, h),
                s.data(), error.data(), RowAt(a.o_NGV, t, h));
      }
      if (double* to = RowAt(a.final_DGKV, FinalRow(a.final_DGKV, a.documents, d), h))
        std::copy(s.begin(), s.end(), to);
    }
  }
}

void ScanDeltaBackward(Stream&, const ScanDeltaBackwardArgs& a) {
  ZeroAbsent(a.dinitial_DGKV, a.documents);
  const Head sizes{a.q_NHK.dim(2), a.v_NGV.dim(2), a.scale, a.g_NGK.defined()};
  const int64_t heads = a.v_NGV.dim(1), group = heads / a.q_NHK.dim(1), size = sizes.k * sizes.v;
  const int32_t* cu = a.documents.cu_seqlens().data<int32_t>();
  std::vector<double> error(sizes.v);
  for (int64_t d = 0; d < a.documents.count(); ++d) {
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t tokens = cu[d + 1] - cu[d];
      std::vector<double> s((tokens + 1) * size, 0.0), ds(size, 0.0);  // S before each token
      if (const double* s0 = RowAt(a.initial_DGKV, InitialRow(a.initial_DGKV, d), h))
        std::copy(s0, s0 + size, s.begin());
      const auto token = [&](const auto& visit, int64_t i) {
        const int64_t t = cu[d] + i;
        return visit(t, RowAt(a.q_NHK, t, h / group), RowAt(a.k_NHK, t, h / group),
                     RowAt(a.v_NGV, t, h), RowAt(Either(a.g_NG, a.g_NGK), t, h),
                     *RowAt(a.beta_NG, t, h));
      };
      for (int64_t i = 0; i < tokens; ++i) {
        token(
            [&](int64_t, auto* q, auto* k, auto* v, auto* g, double beta) {
              double* next = &s[(i + 1) * size];
              std::copy(next - size, next, next);
              Advance(sizes, q, k, v, g, beta, next, error.data(), nullptr);
            },
            i);
      }
      if (const double* end = RowAt(a.dfinal_DGKV, FinalRow(a.dfinal_DGKV, a.documents, d), h))
        ds.assign(end, end + size);
      for (int64_t i = tokens - 1; i >= 0; --i) {
        token(
            [&](int64_t t, auto* q, auto* k, auto* v, auto* g, double beta) {
              const TokenGrad grad =
                  Retreat(sizes, q, k, v, g, beta, &s[i * size], RowAt(a.do_NGV, t, h), ds);
              const bool first = h % group == 0;
              AddRow(a.dq_NHK, t, h / group, grad.dq, first);
              AddRow(a.dk_NHK, t, h / group, grad.dk, first);
              AddRow(a.dv_NGV, t, h, grad.dv);
              AddRow(sizes.per_channel ? a.dg_NGK : a.dg_NG, t, h, grad.dg);
              AddRow(a.dbeta_NG, t, h, {&grad.dbeta, 1});
            },
            i);
      }
      AddRow(a.dinitial_DGKV, InitialRow(a.dinitial_DGKV.to, d), h, ds);
    }
  }
}

void ScanDeltaStep(Stream&, const ScanDeltaStepArgs& a) {
  const Head sizes{a.q_BHK.dim(2), a.v_BGV.dim(2), a.scale, a.g_BGK.defined()};
  const int64_t heads = a.v_BGV.dim(1), group = heads / a.q_BHK.dim(1);
  std::vector<double> error(sizes.v);
  for (int64_t b = 0; b < a.v_BGV.dim(0); ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      Advance(sizes, RowAt(a.q_BHK, b, h / group), RowAt(a.k_BHK, b, h / group),
              RowAt(a.v_BGV, b, h), RowAt(Either(a.g_BG, a.g_BGK), b, h), *RowAt(a.beta_BG, b, h),
              RowAt(a.state_BGKV, b, h), error.data(), RowAt(a.o_BGV, b, h));
    }
  }
}

}  // namespace lt2::reference
