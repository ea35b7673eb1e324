// One query of the indexer's loss: scores of the keys it lists, and the target over them.
#pragma once

#include <cmath>

#include "kernels/cpu/micro_gemm.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/simd.h"
#include "kernels/index_score.h"
#include "kernels/indexer_loss.h"

namespace lt2::cpu {

template <class T>
class IndexerRow {
 public:
  static constexpr int kLanes = 16;  // keys at a time

  // Takes the calling thread's scratch.
  IndexerRow(const Tensor& a_NJC, const Tensor& b_NC, const Tensor& w_NJ,
             const IndexerTarget& target)
      : target_(target),
        J_(a_NJC.dim(1)),
        C_(a_NJC.dim(2)),
        H_(target.q_NHD.dim(1)),
        D_(target.q_NHD.dim(2)),
        G_(target.k_NGD.dim(1)),
        S_(target.keys_NS.dim(1)),
        padded_((S_ + kLanes - 1) / kLanes * kLanes),
        a_(a_NJC.data<T>()),
        b_(b_NC.data<T>()),
        w_(w_NJ.data<T>()) {
    Scratch& scratch = Scratch::Restart();
    const int64_t lanes = PadToLanes<T>(H_ / G_);
    bT_ = scratch.Take<double>(C_ * kLanes);
    qT_ = scratch.Take<T>(D_ * lanes);
    rows_ = scratch.Take<T>(kLanes * D_);
    logits_ = scratch.Take<T>(kLanes * lanes);
    r_tile_ = scratch.Take<double>(J_ * kLanes);
    r_ = scratch.Take<double>(J_ * padded_);
    score_ = scratch.Take<double>(padded_);
    p_ = scratch.Take<double>(padded_);
  }

  void Load(int64_t t) {
    query_ = t;
    const int32_t* keys = target_.keys_NS.data<int32_t>() + t * S_;
    keys_ = keys;
    const int64_t token = target_.documents.query_begin() + t;
    begin_ = token - target_.documents.positions().template data<int32_t>()[token];
    for (count_ = 0; count_ < S_ && keys[count_] >= 0;) ++count_;
    for (int64_t i = 0; i < count_; i += kLanes) ScoreTile(i);
    LogSoftmax();
    Target();
  }

  int64_t count() const { return count_; }
  int64_t key(int64_t i) const { return begin_ + keys_[i]; }  // row of b and k
  double r(int64_t j, int64_t i) const { return r_[j * padded_ + i]; }
  double log_prediction(int64_t i) const { return score_[i]; }
  double p(int64_t i) const { return p_[i]; }

 private:
  void ScoreTile(int64_t first) {
    const int64_t keys = std::min<int64_t>(kLanes, count_ - first);
    for (int64_t i = 0; i < kLanes; ++i) {
      const T* b = b_ + key(first + std::min(i, keys - 1)) * C_;
      for (int64_t c = 0; c < C_; ++c) bT_[c * kLanes + i] = b[c];
    }
    IndexScores<kLanes>(a_ + query_ * J_ * C_, w_ + query_ * J_, J_, C_, bT_, r_tile_,
                        score_ + first);
    for (int64_t j = 0; j < J_; ++j) {
      std::copy_n(r_tile_ + j * kLanes, kLanes, r_ + j * padded_ + first);
    }
  }

  void LogSoftmax() {
    double largest = -INFINITY, sum = 0;
    for (int64_t i = 0; i < count_; ++i) largest = std::max(largest, score_[i]);
    for (int64_t i = 0; i < count_; ++i) sum += std::exp(score_[i] - largest);
    const double lse = largest + std::log(sum);
    for (int64_t i = 0; i < count_; ++i) score_[i] -= lse;
  }

  void Target() {
    if (target_.p_MS.defined()) {
      std::copy_n(target_.p_MS.template data<T>() + query_ * S_, count_, p_);
    } else {
      SumOverHeads();
    }
    double sum = 0;
    for (int64_t i = 0; i < count_; ++i) sum += p_[i];
    for (int64_t i = 0; i < count_; ++i) p_[i] /= std::max(sum, 1e-10);
  }

  // Attention probabilities.
  void SumOverHeads() {
    const int64_t heads = H_ / G_, lanes = PadToLanes<T>(heads);
    const T scale = static_cast<T>(target_.scale);
    std::fill(p_, p_ + count_, 0.0);
    for (int64_t g = 0; g < G_; ++g) {
      const T* q = target_.q_NHD.data<T>() + (query_ * H_ + g * heads) * D_;
      const T* lse = target_.lse_NH.data<T>() + query_ * H_ + g * heads;
      for (int64_t d = 0; d < D_; ++d) {
        for (int64_t h = 0; h < lanes; ++h) {
          qT_[d * lanes + h] = h < heads ? scale * q[h * D_ + d] : T(0);
        }
      }
      for (int64_t first = 0; first < count_; first += kLanes) {
        const int64_t keys = std::min<int64_t>(kLanes, count_ - first);
        for (int64_t i = 0; i < keys; ++i) {
          std::copy_n(target_.k_NGD.data<T>() + (key(first + i) * G_ + g) * D_, D_, rows_ + i * D_);
        }
        MicroGemm<false>(MicroGemmArgs<T>{.rows = keys,
                                          .lanes = lanes,
                                          .inner = D_,
                                          .a = rows_,
                                          .a_row = D_,
                                          .a_inner = 1,
                                          .b = qT_,
                                          .ldb = lanes,
                                          .c = logits_,
                                          .ldc = lanes});
        for (int64_t i = 0; i < keys; ++i) {
          T sum = 0;
#pragma omp simd reduction(+ : sum)
          for (int64_t h = 0; h < heads; ++h) sum += Exp(logits_[i * lanes + h] - lse[h]);
          p_[first + i] += sum;
        }
      }
    }
  }

  const IndexerTarget& target_;
  const int64_t J_, C_, H_, D_, G_, S_, padded_;
  const T *a_, *b_, *w_;
  T *qT_, *rows_, *logits_;  // [D, heads padded], [kLanes, D], [kLanes, heads]
  double* bT_;               // [C, kLanes]
  double *r_tile_, *r_, *score_, *p_;
  int64_t query_ = 0, begin_ = 0, count_ = 0;
  const int32_t* keys_ = nullptr;
};

}  // namespace lt2::cpu
