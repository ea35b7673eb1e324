#include "kernels/indexer_loss.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/reference/store.h"

namespace lt2::reference {
namespace {

double Dot(const double* x, const double* y, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += x[i] * y[i];
  return sum;
}

// One query: the keys it lists (rows of b and k), its target and the logarithm of its prediction.
struct Row {
  std::vector<int64_t> keys;
  std::vector<double> p, log_prediction;
};

template <class Args>
Row RowOf(const Args& args, int64_t t) {
  const IndexerTarget& target = args.target;
  const int64_t J = args.a_NJC.dim(1), C = args.a_NJC.dim(2), S = target.keys_NS.dim(1);
  const int64_t H = target.q_NHD.dim(1), D = target.q_NHD.dim(2), G = target.k_NGD.dim(1);
  const int64_t token = target.documents.query_begin() + t;
  const int64_t begin = token - target.documents.positions().template data<int32_t>()[token];
  Row row;
  double p_sum = 0, largest = -INFINITY, sum = 0;
  for (int64_t i = 0; i < S; ++i) {
    const int32_t position = target.keys_NS.template data<int32_t>()[t * S + i];
    if (position < 0) break;
    const int64_t s = begin + position;
    row.keys.push_back(s);
    double score = 0, p = 0;
    for (int64_t j = 0; j < J; ++j) {
      const double r = Dot(args.a_NJC.template data<double>() + (t * J + j) * C,
                           args.b_NC.template data<double>() + s * C, C);
      score += args.w_NJ.template data<double>()[t * J + j] * std::max(r, 0.0);
    }
    const bool given = target.p_MS.defined();
    if (given) p = target.p_MS.template data<double>()[t * S + i];
    for (int64_t h = 0; !given && h < H; ++h) {
      const double* q = target.q_NHD.template data<double>() + (t * H + h) * D;
      const double* k = target.k_NGD.template data<double>() + (s * G + h / (H / G)) * D;
      p += std::exp(target.scale * Dot(q, k, D) - target.lse_NH.template data<double>()[t * H + h]);
    }
    row.log_prediction.push_back(score);
    row.p.push_back(p);
    p_sum += p;
    largest = std::max(largest, score);
  }
  for (double score : row.log_prediction) sum += std::exp(score - largest);
  for (double& score : row.log_prediction) score -= largest + std::log(sum);
  for (double& p : row.p) p /= std::max(p_sum, 1e-10);
  return row;
}

}  // namespace

void IndexerLossForward(Stream&, const IndexerLossForwardArgs& args) {
  double sum = 0;
  for (int64_t t = 0; t < args.a_NJC.dim(0); ++t) {
    const Row row = RowOf(args, t);
    if (args.p_MS.defined()) {
      const Tensor p_S = args.p_MS.Rows(t, t + 1);
      p_S.Zero();
      std::ranges::copy(row.p, p_S.data<double>());
      continue;
    }
    double kl = 0;
    for (size_t i = 0; i < row.keys.size(); ++i) {
      if (row.p[i] > 0) kl += row.p[i] * (std::log(row.p[i]) - row.log_prediction[i]);
    }
    args.kl_N.data<double>()[t] = kl;
    sum += kl;
  }
  if (!args.p_MS.defined()) args.loss.data<double>()[0] = args.weight * sum;
}

void IndexerLossBackward(Stream&, const IndexerLossBackwardArgs& args) {
  const int64_t N = args.a_NJC.dim(0), J = args.a_NJC.dim(1), C = args.a_NJC.dim(2);
  const auto start = [](const Tensor& gradient, bool accumulate) {
    if (gradient.defined() && !accumulate) gradient.Zero();
    return DataOrNull(gradient);
  };
  double* da = start(args.da_NJC, args.accumulate_da);
  double* db = start(args.db_NC, args.accumulate_db);
  double* dw = start(args.dw_NJ, args.accumulate_dw);
  for (int64_t t = 0; t < N; ++t) {
    const Row row = RowOf(args, t);
    for (size_t i = 0; i < row.keys.size(); ++i) {
      const double* b = args.b_NC.data<double>() + row.keys[i] * C;
      const double dscore =
          args.dloss.data<double>()[0] * args.weight * (std::exp(row.log_prediction[i]) - row.p[i]);
      for (int64_t j = 0; j < J; ++j) {
        const double* a = args.a_NJC.data<double>() + (t * J + j) * C;
        const double r = Dot(a, b, C);
        if (r <= 0) continue;
        const double dr = dscore * args.w_NJ.data<double>()[t * J + j];
        if (dw) dw[t * J + j] += dscore * r;
        for (int64_t c = 0; c < C; ++c) {
          if (da) da[(t * J + j) * C + c] += dr * b[c];
          if (db) db[row.keys[i] * C + c] += dr * a[c];
        }
      }
    }
  }
}

}  // namespace lt2::reference
