#include "kernels/repeat_heads.h"

#include "kernels/reference/store.h"

namespace lt2::reference {

void RepeatHeadsForward(Stream&, const RepeatHeadsForwardArgs& args) {
  const int64_t heads = args.y.dim(1), k = args.y.dim(2), copies = heads / args.x.dim(1);
  for (int64_t i = 0; i < args.y.size(); ++i) {
    const int64_t n = i / (heads * k), h = i / k % heads;
    const int64_t from = (n * args.x.dim(1) + h / copies) * k + i % k;
    args.y.data<double>()[i] = args.x.data<double>()[from];
  }
}

void RepeatHeadsBackward(Stream&, const RepeatHeadsBackwardArgs& args) {
  const int64_t k = args.dx.dim(2), copies = args.dy.dim(1) / args.dx.dim(1);
  for (int64_t i = 0; i < args.dx.size(); ++i) {
    double sum = 0;
    for (int64_t r = 0; r < copies; ++r) {
      sum += args.dy.data<double>()[(i / k * copies + r) * k + i % k];
    }
    Store(args.dx.data<double>(), i, sum, args.accumulate_dx);
  }
}

}  // namespace lt2::reference
