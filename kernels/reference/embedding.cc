#include "kernels/embedding.h"

namespace lt2::reference {

void EmbeddingForward(Stream&, const EmbeddingForwardArgs& args) {
  const int64_t d = args.w.dim(1);
  const int32_t* ids = args.ids.data<int32_t>();
  for (int64_t n = 0; n < args.ids.size(); ++n) {
    CHECK(0 <= ids[n] && ids[n] < args.w.dim(0)) << "id " << ids[n];
    for (int64_t i = 0; i < d; ++i) {
      args.y.data<double>()[n * d + i] = args.w.data<double>()[ids[n] * d + i];
    }
  }
}

void EmbeddingBackward(Stream&, const EmbeddingBackwardArgs& args) {
  const int64_t d = args.dw.dim(1);
  const int32_t* ids = args.ids.data<int32_t>();
  for (int64_t n = 0; n < args.ids.size(); ++n) {
    for (int64_t i = 0; i < d; ++i) {
      args.dw.data<double>()[ids[n] * d + i] += args.dy.data<double>()[n * d + i];
    }
  }
}

}  // namespace lt2::reference
