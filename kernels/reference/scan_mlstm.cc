// Token by token, both ways.
#include "kernels/scan_mlstm.h"

#include "kernels/reference/gate.h"
#include "kernels/reference/rows.h"

namespace lt2::reference {
namespace {

// A state [K, V + 1] in the frame of m.
struct State {
  std::vector<double> s;
  double m = 0;
};

// One token of one head.
struct Token {
  int64_t K, V;
  const double *q, *k, *v;
  double i, f, scale;

  double Value(int64_t j) const { return j < V ? v[j] : 1; }

  // What the old state and the new entry weigh, and the new m.
  void Weights(double m, double* keep, double* write, double* next_m) const {
    *next_m = std::max(LogSigmoid(f) + m, i);
    *keep = std::exp(LogSigmoid(f) + m - *next_m);
    *write = std::exp(i - *next_m);
  }
  void Advance(State& state) const {
    double keep, write, m;
    Weights(state.m, &keep, &write, &m);
    for (int64_t d = 0; d < K; ++d) {
      for (int64_t j = 0; j <= V; ++j) {
        double& s = state.s[d * (V + 1) + j];
        s = keep * s + write * k[d] * Value(j);
      }
    }
    state.m = m;
  }
  // [num, den].
  std::vector<double> Read(const State& state) const {
    std::vector<double> y(V + 1, 0.0);
    for (int64_t d = 0; d < K; ++d) {
      for (int64_t j = 0; j <= V; ++j) y[j] += scale * q[d] * state.s[d * (V + 1) + j];
    }
    return y;
  }
  void Output(const State& state, double* o) const {
    const std::vector<double> y = Read(state);
    for (int64_t j = 0; j < V; ++j) o[j] = y[j] / std::max(std::abs(y[V]), std::exp(-state.m));
  }
};

template <class Args>
Token TokenOf(const Args& a, int64_t t, int64_t h) {
  return {a.q_NHK.dim(2),       a.v_NHV.dim(2),       RowAt(a.q_NHK, t, h), RowAt(a.k_NHK, t, h),
          RowAt(a.v_NHV, t, h), *RowAt(a.i_NH, t, h), *RowAt(a.f_NH, t, h), a.scale};
}

template <class Args>
State InitialState(const Args& a, int64_t document, int64_t head) {
  const int64_t size = a.q_NHK.dim(2) * (a.v_NHV.dim(2) + 1);
  const int64_t row = InitialRow(a.initial_DHKW, document);
  const double* s = RowAt(a.initial_DHKW, row, head);
  if (s == nullptr) return {.s = std::vector<double>(size, 0.0)};
  return {.s = {s, s + size}, .m = *RowAt(a.initial_max_DH, row, head)};
}

// dS after o_t becomes dS before the token; `before` is the state then. d_o may be null.
void Retreat(const ScanMlstmBackwardArgs& a, int64_t t, int64_t h, const State& before,
             std::vector<double>& ds) {
  const Token token = TokenOf(a, t, h);
  const int64_t K = token.K, V = token.V, W = V + 1;
  State after = before;
  token.Advance(after);
  const std::vector<double> y = token.Read(after);
  const double floor = std::exp(-after.m), z = std::max(std::abs(y[V]), floor);
  std::vector<double> dy(W, 0.0), dq(K, 0.0), dk(K, 0.0), dv(V, 0.0);
  if (const double* d_o = RowAt(a.do_NHV, t, h)) {
    for (int64_t j = 0; j < V; ++j) {
      dy[j] = d_o[j] / z;
      if (std::abs(y[V]) > floor) dy[V] -= d_o[j] * y[j] / (z * y[V]);
    }
  }
  double keep, write, m, di = 0, dlog_forget = 0;
  token.Weights(before.m, &keep, &write, &m);
  for (int64_t d = 0; d < K; ++d) {
    for (int64_t j = 0; j < W; ++j) {
      double& g = ds[d * W + j];
      dq[d] += token.scale * after.s[d * W + j] * dy[j];
      g += token.scale * token.q[d] * dy[j];
      dk[d] += write * g * token.Value(j);
      if (j < V) dv[j] += write * g * token.k[d];
      di += write * g * token.k[d] * token.Value(j);
      dlog_forget += keep * g * before.s[d * W + j];
      g *= keep;
    }
  }
  const double df = dlog_forget * Sigmoid(-token.f);
  AddRow(a.dq_NHK, t, h, dq);
  AddRow(a.dk_NHK, t, h, dk);
  AddRow(a.dv_NHV, t, h, dv);
  AddRow(a.di_NH, t, h, {&di, 1});
  AddRow(a.df_NH, t, h, {&df, 1});
}

}  // namespace

void ScanMlstmForward(Stream&, const ScanMlstmForwardArgs& a) {
  const int32_t* cu = a.documents.cu_seqlens().data<int32_t>();
  ZeroAbsent(a.final_DHKW, a.documents);
  ZeroAbsent(a.final_max_DH, a.documents);
  for (int64_t d = 0; d < a.documents.count(); ++d) {
    for (int64_t h = 0; h < a.q_NHK.dim(1); ++h) {
      State state = InitialState(a, d, h);
      for (int64_t t = cu[d]; t < cu[d + 1]; ++t) {
        const Token token = TokenOf(a, t, h);
        token.Advance(state);
        if (double* o = RowAt(a.o_NHV, t, h)) token.Output(state, o);
      }
      if (double* to = RowAt(a.final_DHKW, FinalRow(a.final_DHKW, a.documents, d), h)) {
        std::copy(state.s.begin(), state.s.end(), to);
        *RowAt(a.final_max_DH, FinalRow(a.final_max_DH, a.documents, d), h) = state.m;
      }
    }
  }
}

void ScanMlstmBackward(Stream&, const ScanMlstmBackwardArgs& a) {
  const int32_t* cu = a.documents.cu_seqlens().data<int32_t>();
  const int64_t size = a.q_NHK.dim(2) * (a.v_NHV.dim(2) + 1);
  ZeroAbsent(a.dinitial_DHKW, a.documents);
  for (int64_t d = 0; d < a.documents.count(); ++d) {
    for (int64_t h = 0; h < a.q_NHK.dim(1); ++h) {
      std::vector<State> before = {InitialState(a, d, h)};
      for (int64_t t = cu[d]; t < cu[d + 1]; ++t) {
        State next = before.back();
        TokenOf(a, t, h).Advance(next);
        before.push_back(next);
      }
      std::vector<double> ds(size, 0.0);
      if (const double* end = RowAt(a.dfinal_DHKW, FinalRow(a.dfinal_DHKW, a.documents, d), h))
        ds.assign(end, end + size);
      for (int64_t t = cu[d + 1] - 1; t >= cu[d]; --t) Retreat(a, t, h, before[t - cu[d]], ds);
      AddRow(a.dinitial_DHKW, InitialRow(a.dinitial_DHKW.to, d), h, ds);
    }
  }
}

void ScanMlstmStep(Stream&, const ScanMlstmStepArgs& a) {
  const int64_t size = a.q_BHK.dim(2) * (a.v_BHV.dim(2) + 1);
  for (int64_t b = 0; b < a.q_BHK.dim(0); ++b) {
    for (int64_t h = 0; h < a.q_BHK.dim(1); ++h) {
      const Token token = {
          a.q_BHK.dim(2),       a.v_BHV.dim(2),       RowAt(a.q_BHK, b, h), RowAt(a.k_BHK, b, h),
          RowAt(a.v_BHV, b, h), *RowAt(a.i_BH, b, h), *RowAt(a.f_BH, b, h), a.scale};
      double *s = RowAt(a.state_BHKW, b, h), *m = RowAt(a.max_BH, b, h);
      State state{.s = {s, s + size}, .m = *m};
      token.Advance(state);
      token.Output(state, RowAt(a.o_BHV, b, h));
      std::copy(state.s.begin(), state.s.end(), s);
      *m = state.m;
    }
  }
}

}  // namespace lt2::reference
