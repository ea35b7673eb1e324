#include "kernels/add_bias.h"

namespace lt2::reference {

void AddBiasForward(Stream&, const AddBiasForwardArgs& args) {
  const double *x = args.x.data<double>(), *b = args.b.data<double>();
  for (int64_t i = 0; i < args.x.size(); ++i) {
    args.y.data<double>()[i] = x[i] + b[i % args.b.size()];
  }
}

void AddBiasBackward(Stream&, const AddBiasBackwardArgs& args) {
  for (int64_t i = 0; i < args.dy.size(); ++i) {
    args.db.data<double>()[i % args.db.size()] += args.dy.data<double>()[i];
  }
}

}  // namespace lt2::reference
