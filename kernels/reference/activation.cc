#include "kernels/activation.h"

#include <cmath>

#include "kernels/reference/gate.h"
#include "kernels/reference/store.h"

namespace lt2::reference {

namespace {

double Value(Activation kind, double x) {
  switch (kind) {
    case Activation::kEluPlusOne:
      return x > 0 ? x + 1 : std::exp(x);
    case Activation::kSilu:
      return x * Sigmoid(x);
    case Activation::kLogSigmoid:
      break;
  }
  return LogSigmoid(x);
}

double Slope(Activation kind, double x) {
  switch (kind) {
    case Activation::kEluPlusOne:
      return x > 0 ? 1 : std::exp(x);
    case Activation::kSilu:
      return Sigmoid(x) * (1 + x * Sigmoid(-x));
    case Activation::kLogSigmoid:
      break;
  }
  return Sigmoid(-x);
}

}  // namespace

void ActivateForward(Stream&, const ActivateForwardArgs& args) {
  for (int64_t i = 0; i < args.x.size(); ++i) {
    args.y.data<double>()[i] = args.factor * Value(args.kind, args.x.data<double>()[i]);
  }
}

void ActivateBackward(Stream&, const ActivateBackwardArgs& args) {
  for (int64_t i = 0; i < args.x.size(); ++i) {
    const double slope = args.factor * Slope(args.kind, args.x.data<double>()[i]);
    Store(DataOrNull(args.dx), i, args.dy.data<double>()[i] * slope, args.accumulate_dx);
  }
}

}  // namespace lt2::reference
