#include "kernels/squared_norm.h"

namespace lt2::reference {

void SquaredNorms(Stream&, const SquaredNormsArgs& args) {
  for (size_t i = 0; i < args.x.size(); ++i) {
    double sum = 0;
    for (double x : args.x[i].span<double>()) sum += x * x;
    args.sums.data<double>()[i] = sum;
  }
}

}  // namespace lt2::reference
