#include "kernels/attention.h"

#include <cmath>

namespace lt2::reference {
namespace {

// One (query, head): where its visible keys lie, and its probabilities over them.
struct Query {
  int64_t first_key, last_key, group;
  std::vector<double> p;
  double lse;
};

Query Attend(const Tensor& q, const Tensor& k, const AttentionOptions& options,
             const Documents& documents, int64_t i, int64_t h) {
  const int64_t H = q.dim(1), D = q.dim(2), G = k.dim(1);
  const int64_t token = documents.query_begin() + i;
  const int64_t begin = token - documents.positions().data<int32_t>()[token];
  Query query{.first_key = begin, .last_key = token, .group = h / (H / G), .p = {}, .lse = 0};
  if (options.window > 0) query.first_key = std::max(begin, token - options.window + 1);
  double largest = -INFINITY, sum = 0;
  for (int64_t j = query.first_key; j <= token; ++j) {
    const double* q_ih = q.data<double>() + (i * H + h) * D;
    const double* k_jg = k.data<double>() + (j * G + query.group) * D;
    double score = 0;
    for (int64_t d = 0; d < D; ++d) score += q_ih[d] * k_jg[d];
    query.p.push_back(options.scale * score);
    largest = std::max(largest, query.p.back());
  }
  for (double& p : query.p) sum += p = std::exp(p - largest);
  for (double& p : query.p) p /= sum;
  query.lse = largest + std::log(sum);
  return query;
}

}  // namespace

void AttentionForward(Stream&, const AttentionForwardArgs& args) {
  const int64_t N = args.q_NHD.dim(0), H = args.q_NHD.dim(1), G = args.k_NGD.dim(1);
  const int64_t E = args.v_NGE.dim(2);
  args.o_NHE.Zero();
  for (int64_t i = 0; i < N; ++i) {
    for (int64_t h = 0; h < H; ++h) {
      const Query query = Attend(args.q_NHD, args.k_NGD, args.options, args.documents, i, h);
      double* o_ih = args.o_NHE.data<double>() + (i * H + h) * E;
      for (int64_t j = query.first_key; j <= query.last_key; ++j) {
        const double* v_jg = args.v_NGE.data<double>() + (j * G + query.group) * E;
        for (int64_t e = 0; e < E; ++e) o_ih[e] += query.p[j - query.first_key] * v_jg[e];
      }
      args.lse_NH.data<double>()[i * H + h] = query.lse;
    }
  }
}

void AttentionBackward(Stream&, const AttentionBackwardArgs& args) {
  const int64_t N = args.q_NHD.dim(0), H = args.q_NHD.dim(1), G = args.k_NGD.dim(1);
  const int64_t D = args.q_NHD.dim(2), E = args.v_NGE.dim(2);
  const double scale = args.options.scale;
  const auto start = [](const Tensor& gradient, bool accumulate) {
    if (gradient.defined() && !accumulate) gradient.Zero();
    return gradient.defined() ? gradient.data<double>() : nullptr;
  };
  double* dq = start(args.dq_NHD, args.accumulate_dq);
  double* dk = start(args.dk_NGD, args.accumulate_dk);
  double* dv = start(args.dv_NGE, args.accumulate_dv);
  for (int64_t i = 0; i < N; ++i) {
    for (int64_t h = 0; h < H; ++h) {
      const Query query = Attend(args.q_NHD, args.k_NGD, args.options, args.documents, i, h);
      const double* q_ih = args.q_NHD.data<double>() + (i * H + h) * D;
      const double* do_ih = args.do_NHE.data<double>() + (i * H + h) * E;
      // dp_j = do · v_j; the gradient of softmax: ds_j = p_j (dp_j - sum_l p_l dp_l).
      std::vector<double> dp(query.p.size(), 0.0);
      double mean = 0;
      for (size_t n = 0; n < dp.size(); ++n) {
        const int64_t row = (query.first_key + n) * G + query.group;
        for (int64_t e = 0; e < E; ++e) {
          dp[n] += do_ih[e] * args.v_NGE.data<double>()[row * E + e];
          if (dv) dv[row * E + e] += query.p[n] * do_ih[e];
        }
        mean += query.p[n] * dp[n];
      }
      for (size_t n = 0; n < dp.size(); ++n) {
        const int64_t row = (query.first_key + n) * G + query.group;
        const double ds = scale * query.p[n] * (dp[n] - mean);
        for (int64_t d = 0; d < D; ++d) {
          if (dq) dq[(i * H + h) * D + d] += ds * args.k_NGD.data<double>()[row * D + d];
          if (dk) dk[row * D + d] += ds * q_ih[d];
        }
      }
    }
  }
}

}  // namespace lt2::reference
