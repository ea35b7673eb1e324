#include "kernels/rope.h"

#include <cmath>

#include "kernels/reference/store.h"

namespace lt2::reference {

void Rope(Stream&, const RopeArgs& args) {
  const int64_t heads = args.x.dim(1), d = args.x.dim(2), half = d / 2;
  for (int64_t n = 0; n < args.x.dim(0); ++n) {
    const double position = args.positions.data<int32_t>()[n];
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t head = (n * heads + h) * d;
      for (int64_t i = 0; i < half; ++i) {
        double angle = position * std::pow(args.options.theta, -2.0 * i / d);
        if (args.inverse) angle = -angle;
        const bool paired = args.options.style == RopeStyle::kInterleaved;
        const int64_t first = head + (paired ? 2 * i : i);
        const int64_t second = head + (paired ? 2 * i + 1 : i + half);
        const double a = args.x.data<double>()[first], b = args.x.data<double>()[second];
        double* y = args.y.data<double>();
        Store(y, first, a * std::cos(angle) - b * std::sin(angle), args.accumulate);
        Store(y, second, a * std::sin(angle) + b * std::cos(angle), args.accumulate);
      }
    }
  }
}

}  // namespace lt2::reference
