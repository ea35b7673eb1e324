#include "kernels/first_token_mass.h"

#include <cmath>

namespace lt2::reference {

void FirstTokenMass(Stream&, const FirstTokenMassArgs& args) {
  const int64_t N = args.q_NHD.dim(0), H = args.q_NHD.dim(1), D = args.q_NHD.dim(2);
  const int64_t G = args.k_NGD.dim(1), window = args.options.window;
  double* mass = args.mass.data<double>();
  for (int64_t i = 0; i < N; ++i) {
    const int64_t token = args.documents.query_begin() + i;
    const int64_t position = args.documents.whole_positions().data<int32_t>()[token];
    const bool visible = position <= token && (window == 0 || position < window);
    const int64_t first = visible ? token - position : token;
    for (int64_t h = 0; h < H && position > 0; ++h) {
      const double* q = args.q_NHD.data<double>() + (i * H + h) * D;
      const double* k = args.k_NGD.data<double>() + (first * G + h / (H / G)) * D;
      double score = 0;
      for (int64_t d = 0; d < D; ++d) score += q[d] * k[d];
      const double lse = args.lse_NH.data<double>()[i * H + h];
      mass[0] += visible ? std::exp(args.options.scale * score - lse) : 0;
      mass[1] += 1;
    }
  }
}

}  // namespace lt2::reference
