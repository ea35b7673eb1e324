#include "kernels/squared_norm.h"

#include "kernels/reference/store.h"

namespace lt2::reference {

void SquaredNorm(Stream&, const SquaredNormArgs& args) {
  double sum = 0;
  for (double x : args.x.span<double>()) sum += x * x;
  Store(args.sum.data<double>(), 0, sum, args.accumulate);
}

}  // namespace lt2::reference
