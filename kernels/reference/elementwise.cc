#include "kernels/elementwise.h"

namespace lt2::reference {

void Accumulate(Stream&, const AccumulateArgs& args) {
  CHECK_EQ(args.to.size(), args.from.size());
  for (int64_t i = 0; i < args.to.size(); ++i) {
    args.to.data<double>()[i] += args.from.data<double>()[i];
  }
}

void Fill(Stream&, const FillArgs& args) {
  for (double& value : args.to.span<double>()) value = args.value;
}

void Scale(Stream&, const ScaleArgs& args) {
  for (double& value : args.to.span<double>()) value *= args.factor;
}

void Cast(Stream&, const CastArgs& args) {
  CHECK_EQ(args.to.size(), args.from.size());
  for (int64_t i = 0; i < args.to.size(); ++i) {
    args.to.data<BFloat16>()[i] = BFloat16::Of(args.from.data<float>()[i]);
  }
}

}  // namespace lt2::reference
