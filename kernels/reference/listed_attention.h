// Attention of every (query, head) over the key rows that a function lists for it: the formula that
// selected and compressed attention share.
#pragma once

#include <cmath>
#include <limits>
#include <vector>

#include "core/tensor.h"

namespace lt2::reference {

struct ListedAttention {
  Tensor q_NHD, k_RGD, v_RGE;  // rows of keys need not be tokens
  double scale;

  // exp(s - lse) over the rows of query i and head h, and lse.
  std::vector<double> Probabilities(int64_t i, int64_t h, const std::vector<int64_t>& rows,
                                    double* lse) const {
    const int64_t H = q_NHD.dim(1), D = q_NHD.dim(2), G = k_RGD.dim(1), g = h / (H / G);
    std::vector<double> p;
    double largest = -INFINITY, sum = 0;
    for (int64_t row : rows) {
      double score = 0;
      for (int64_t d = 0; d < D; ++d) {
        score +=
            q_NHD.data<double>()[(i * H + h) * D + d] * k_RGD.data<double>()[(row * G + g) * D + d];
      }
      p.push_back(scale * score);
      largest = std::max(largest, p.back());
    }
    for (double& x : p) sum += x = std::exp(x - largest);
    for (double& x : p) x /= sum;
    *lse = rows.empty() ? -INFINITY : largest + std::log(sum);
    return p;
  }
};

// rows(i, g): the rows that query i sees of key/value head g.
template <class Rows>
void ListedForward(const ListedAttention& in, const Rows& rows, const Tensor& o_NHE,
                   const Tensor& lse_NH) {
  const int64_t N = in.q_NHD.dim(0), H = in.q_NHD.dim(1), G = in.k_RGD.dim(1);
  const int64_t E = in.v_RGE.dim(2);
  o_NHE.Zero();
  for (int64_t i = 0; i < N; ++i) {
    for (int64_t h = 0; h < H; ++h) {
      const int64_t g = h / (H / G);
      const std::vector<int64_t> listed = rows(i, g);
      double lse;
      const std::vector<double> p = in.Probabilities(i, h, listed, &lse);
      for (size_t n = 0; n < listed.size(); ++n) {
        for (int64_t e = 0; e < E; ++e) {
          o_NHE.data<double>()[(i * H + h) * E + e] +=
              p[n] * in.v_RGE.data<double>()[(listed[n] * G + g) * E + e];
        }
      }
      if (lse_NH.defined()) lse_NH.data<double>()[i * H + h] = lse;
    }
  }
}

// Adds the gradients; null where not wanted.
template <class Rows>
void ListedBackward(const ListedAttention& in, const Rows& rows, const Tensor& do_NHE, double* dq,
                    double* dk, double* dv) {
  const int64_t N = in.q_NHD.dim(0), H = in.q_NHD.dim(1), D = in.q_NHD.dim(2);
  const int64_t G = in.k_RGD.dim(1), E = in.v_RGE.dim(2);
  for (int64_t i = 0; i < N; ++i) {
    for (int64_t h = 0; h < H; ++h) {
      const int64_t g = h / (H / G);
      const std::vector<int64_t> listed = rows(i, g);
      double lse;
      const std::vector<double> p = in.Probabilities(i, h, listed, &lse);
      const double* do_ih = do_NHE.data<double>() + (i * H + h) * E;
      // dp_j = do · v_j; the gradient of softmax: ds_j = p_j (dp_j - sum_l p_l dp_l).
      std::vector<double> dp(p.size(), 0.0);
      double mean = 0;
      for (size_t n = 0; n < p.size(); ++n) {
        const int64_t row = listed[n] * G + g;
        for (int64_t e = 0; e < E; ++e) {
          dp[n] += do_ih[e] * in.v_RGE.data<double>()[row * E + e];
          if (dv) dv[row * E + e] += p[n] * do_ih[e];
        }
        mean += p[n] * dp[n];
      }
      for (size_t n = 0; n < p.size(); ++n) {
        const int64_t row = listed[n] * G + g;
        const double ds = in.scale * p[n] * (dp[n] - mean);
        for (int64_t d = 0; d < D; ++d) {
          if (dq) dq[(i * H + h) * D + d] += ds * in.k_RGD.data<double>()[row * D + d];
          if (dk) dk[row * D + d] += ds * in.q_NHD.data<double>()[(i * H + h) * D + d];
        }
      }
    }
  }
}

// Where a gradient's sums begin: at zero unless it is added to.
inline double* StartGradient(const Tensor& gradient, bool accumulate) {
  if (!gradient.defined()) return nullptr;
  if (!accumulate) gradient.Zero();
  return gradient.data<double>();
}

}  // namespace lt2::reference
