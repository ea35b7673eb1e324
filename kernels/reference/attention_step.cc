#include "kernels/attention_step.h"

#include <cmath>

namespace lt2::reference {

void AttentionStep(Stream&, const AttentionStepArgs& args) {
  const int64_t B = args.q_BHD.dim(0), H = args.q_BHD.dim(1), D = args.q_BHD.dim(2);
  const int64_t S = args.k_BSGD.dim(1), G = args.k_BSGD.dim(2), E = args.v_BSGE.dim(3);
  const double* k = args.k_BSGD.data<double>();
  const double* v = args.v_BSGE.data<double>();
  args.o_BHE.Zero();
  for (int64_t b = 0; b < B; ++b) {
    const int64_t length = args.lengths_B.data<int32_t>()[b], window = args.options.window;
    CHECK(length >= 0 && length <= S) << "length " << length << " of capacity " << S;
    const int64_t first = window > 0 ? std::max<int64_t>(0, length - window) : 0;
    for (int64_t h = 0; h < H; ++h) {
      const int64_t g = h / (H / G);
      const double* q_bh = args.q_BHD.data<double>() + (b * H + h) * D;
      double* o_bh = args.o_BHE.data<double>() + (b * H + h) * E;
      std::vector<double> p;
      double largest = -INFINITY, sum = 0;
      for (int64_t s = first; s < length; ++s) {
        double score = 0;
        for (int64_t d = 0; d < D; ++d) score += q_bh[d] * k[((b * S + s) * G + g) * D + d];
        p.push_back(args.options.scale * score);
        largest = std::max(largest, p.back());
      }
      for (double& p_s : p) sum += p_s = std::exp(p_s - largest);
      for (int64_t s = first; s < length; ++s) {
        for (int64_t e = 0; e < E; ++e) {
          o_bh[e] += p[s - first] / sum * v[((b * S + s) * G + g) * E + e];
        }
      }
    }
  }
}

}  // namespace lt2::reference
