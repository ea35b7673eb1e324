#include "model/mixers/common/convolved.h"

#include "kernels/linear.h"
#include "model/init.h"

namespace lt2 {

Convolved::Convolved(const MixerSite& site, const std::string& name, int64_t heads,
                     int64_t head_dim, int64_t width, Conv conv)
    : name_(name),
      proj_(site.scope.Add(name + "_proj.weight", {heads * head_dim, width}, ProjectionInit(width),
                           /*decay=*/true, site.Rows(heads))) {
  if (conv == Conv::kNone) return;
  conv_ = &site.scope.AddElementwise(name + "_conv1d.weight", {channels(), kConvWidth},
                                     {.kind = Init::Kind::kUniform, .a = -0.5, .b = 0.5},
                                     /*decay=*/true, site.Rows(heads));
  if (conv == Conv::kPlain) return;
  bias_ = &site.scope.Add(name + "_conv1d.bias", {channels()}, {.kind = Init::Kind::kZeros},
                          /*decay=*/false, site.Rows(heads));
}

Var Convolved::Project(Tape& tape, const Var& x_ND) const { return Linear(tape, x_ND, proj_); }

Var Convolved::operator()(Tape& tape, const Var& x_ND, const RecurrentRun& run, bool silu,
                          int entry, const Meanwhile& meanwhile) const {
  const Var x = Project(tape, x_ND);
  if (conv_ != nullptr) return run.Conv(tape, x, *conv_, bias_, silu, entry, meanwhile);
  meanwhile();
  return x;
}

void Convolved::AddState(int64_t sequences, DType dtype, std::vector<StateEntry>* spec) const {
  if (conv_ == nullptr) return;
  spec->push_back({name_ + "_tail", {sequences, kConvWidth - 1, channels()}, dtype});
}

double Convolved::flops() const {
  const int64_t taps = conv_ == nullptr ? 0 : kConvWidth;
  return 2.0 * static_cast<double>(channels() * (proj_.spec.shape[1] + taps));
}

}  // namespace lt2
