#include "kernels/lightning_indexer.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "kernels/index_score.h"
#include "kernels/reference/store.h"

namespace lt2::reference {
namespace {

// keys [S] of a query that sees the n rows of k.
void Choose(const double* q_HD, const double* w_H, int64_t H, int64_t D, const double* k_ND,
            int64_t n, int64_t S, int32_t* keys) {
  std::vector<double> score(n), r(H);
  for (int64_t s = 0; s < n; ++s) IndexScores<1>(q_HD, w_H, H, D, k_ND + s * D, &r[0], &score[s]);
  std::vector<int32_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](int32_t a, int32_t b) { return score[a] > score[b]; });
  order.resize(std::min(n, S));
  std::ranges::sort(order);
  order.resize(S, -1);
  std::ranges::copy(order, keys);
}

}  // namespace

void LightningIndexer(Stream&, const LightningIndexerArgs& args) {
  const int64_t N = args.q_NHD.dim(0), H = args.q_NHD.dim(1), D = args.q_NHD.dim(2);
  const int64_t S = args.keys_NS.dim(1);
  const double* w = DataOrNull(args.w_NH);
  for (int64_t i = 0; i < N; ++i) {
    const int64_t token = args.documents.query_begin() + i;
    const int64_t position = args.documents.positions().data<int32_t>()[token];
    Choose(args.q_NHD.data<double>() + i * H * D, w ? w + i * H : nullptr, H, D,
           args.k_ND.data<double>() + (token - position) * D, position + 1, S,
           args.keys_NS.data<int32_t>() + i * S);
  }
}

void LightningIndexerStep(Stream&, const LightningIndexerStepArgs& args) {
  const int64_t B = args.q_BHD.dim(0), H = args.q_BHD.dim(1), D = args.q_BHD.dim(2);
  const int64_t S = args.keys_BS.dim(1), C = args.k_BCD.dim(1);
  const double* w = DataOrNull(args.w_BH);
  for (int64_t b = 0; b < B; ++b) {
    const int64_t length = args.lengths_B.data<int32_t>()[b];
    CHECK(length >= 0 && length <= C) << "length " << length << " of capacity " << C;
    Choose(args.q_BHD.data<double>() + b * H * D, w ? w + b * H : nullptr, H, D,
           args.k_BCD.data<double>() + b * C * D, length, S, args.keys_BS.data<int32_t>() + b * S);
  }
}

}  // namespace lt2::reference
