#include "kernels/soft_cap.h"

#include <cmath>

#include "kernels/reference/store.h"

namespace lt2::reference {

void SoftCapForward(Stream&, const SoftCapForwardArgs& args) {
  const int64_t c = args.b.size();
  for (int64_t i = 0; i < args.x.size(); ++i) {
    const double z = args.x.data<double>()[i] + args.b.data<double>()[i % c];
    args.y.data<double>()[i] = args.cap * std::tanh(z / args.cap);
  }
}

void SoftCapBackward(Stream&, const SoftCapBackwardArgs& args) {
  const int64_t c = args.db.size();
  for (int64_t i = 0; i < args.y.size(); ++i) {
    const double t = args.y.data<double>()[i] / args.cap;
    const double dz = args.dy.data<double>()[i] * (1 - t * t);
    Store(DataOrNull(args.dx), i, dz, args.accumulate_dx);
    args.db.data<double>()[i % c] += dz;
  }
}

}  // namespace lt2::reference
