#include "kernels/embedding.h"

namespace lt2::reference {

void EmbeddingForward(Stream&, const EmbeddingForwardArgs& args) {
  const int64_t d = args.w.dim(1);
  const int32_t* ids = args.ids.data<int32_t>();
  for (int64_t n = 0; n < args.ids.size(); ++n) {
    CHECK(0 <= ids[n] && ids[n] < args.vocabulary) << "id " << ids[n];
    const int64_t row = ids[n] - args.first_row;
    const bool here = 0 <= row && row < args.w.dim(0);
    for (int64_t i = 0; i < d; ++i) {
      args.y.data<double>()[n * d + i] = here ? args.w.data<double>()[row * d + i] : 0;
    }
  }
}

void EmbeddingBackward(Stream&, const EmbeddingBackwardArgs& args) {
  const int64_t d = args.dw.dim(1);
  const int32_t* ids = args.ids.data<int32_t>();
  for (int64_t n = 0; n < args.ids.size(); ++n) {
    const int64_t row = ids[n] - args.first_row;
    if (row < 0 || row >= args.dw.dim(0)) continue;
    for (int64_t i = 0; i < d; ++i) {
      args.dw.data<double>()[row * d + i] += args.dy.data<double>()[n * d + i];
    }
  }
}

}  // namespace lt2::reference
