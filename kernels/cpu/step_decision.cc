#include "kernels/step_decision_rule.h"

namespace lt2::cpu {
namespace {

double* Raw(const Tensor& x) { return x.data<double>(); }

}  // namespace

void StepScalars(Stream&, const StepScalarsArgs& args) {
  const StepScalarsData data = DataOf(args, Raw);
  double square = 0, bad = 0;
  for (int64_t i = 0; i < data.pieces; ++i) {
    if (IsFinite(data.squares[i])) {
      square += data.squares[i];
    } else {
      ++bad;
    }
  }
  FillScalars(data, square, bad);
}

void StepDecision(Stream&, const StepDecisionArgs& args) { Decide(DataOf(args, Raw)); }

}  // namespace lt2::cpu
