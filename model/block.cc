#include "model/block.h"

#include "kernels/add.h"
#include "kernels/add_rms_norm.h"
#include "kernels/rms_norm.h"
#include "model/mixers/registry.h"

namespace lt2 {
namespace {

Param& NormWeight(const MixerSite& site, const std::string& name, int64_t width) {
  return site.scope.Add(name + ".weight", {width}, {.kind = Init::Kind::kOnes}, /*decay=*/false,
                        BetweenLayers(site.split));
}

Param* PostNorm(const ModelConfig& config, const MixerSite& site, const std::string& name) {
  return config.sandwich_norm ? &NormWeight(site, name, config.width) : nullptr;
}

}  // namespace

Block::Block(const ModelConfig& config, const std::string& kind, const MixerSite& site)
    : kind_(kind),
      eps_(config.norm_eps),
      norm1_(NormWeight(site, "norm1", config.width)),
      mixer_(MakeMixer(kind, config,
                       {.scope = site.scope.Sub("mixer"),
                        .root = site.root,
                        .layer = site.layer,
                        .layers = site.layers,
                        .split = site.split})),
      norm1_post_(PostNorm(config, site, "norm1_post")),
      norm2_(NormWeight(site, "norm2", config.width)),
      ffn_(config.width, config.ffn, site.scope.Sub("ffn"), site.split),
      norm2_post_(PostNorm(config, site, "norm2_post")) {}

std::vector<Var> Block::Forward(Tape& tape, const Var& x_ND, const MixerContext& context,
                                TensorShard* tensor, RecomputePolicy recompute) {
  const bool products = recompute == RecomputePolicy::kFfn;
  const RebuildScope rebuild(tape, products ? Rebuild::kProducts : Rebuild::kNothing);
  // By value: a recomputed mixer runs again in backward, when this call has returned.
  const auto mixer = [this, context, tensor](Tape& t, std::span<const Var> in) -> std::vector<Var> {
    const Var u_ND = EnterLayer(t, RmsNorm(t, in[0], norm1_, eps_), tensor);
    MixerOutput out = mixer_->Forward(t, u_ND, context);
    if (context.sums == nullptr) out.y_ND = LeaveLayer(t, std::move(out.y_ND), tensor);
    const Var y_ND = Normed(t, out.y_ND, norm1_post_);
    if (!out.auxiliary_loss.value.defined()) return {y_ND};
    return {y_ND, out.auxiliary_loss};
  };
  std::vector<Var> out = recompute == RecomputePolicy::kMixer
                             ? tape.Recompute(std::span(&x_ND, 1), mixer)
                             : mixer(tape, std::span(&x_ND, 1));
  out[0] = FeedForwardHalf(tape, x_ND, out[0], tensor);
  return out;
}

Var Block::Normed(Tape& tape, const Var& out_ND, Param* post) const {
  return post == nullptr ? out_ND : RmsNorm(tape, out_ND, *post, eps_);
}

Var Block::FeedForwardHalf(Tape& tape, const Var& x_ND, const Var& mixed_ND, TensorShard* tensor) {
  const SumAndNorm y = AddRmsNorm(tape, x_ND, mixed_ND, norm2_, eps_);
  if (norm2_post_ == nullptr && tensor == nullptr) return ffn_.Forward(tape, y.normed, &y.sum);
  const auto whole = [&] { return ffn_.Forward(tape, EnterLayer(tape, y.normed, tensor)); };
  const Var out = tensor != nullptr && tensor->sequence() ? ffn_.ForwardSum(tape, y.normed, *tensor)
                                                          : LeaveLayer(tape, whole(), tensor);
  return Add(tape, y.sum, Normed(tape, out, norm2_post_));
}

Tensor Block::Step(Stream& stream, const Tensor& x_BD, MixerState& state,
                   const StepContext& context) {
  Tape tape(stream);
  tape.set_recording(false);
  const Var x = tape.Input(x_BD);
  const Tensor mixed = mixer_->Step(stream, RmsNorm(tape, x, norm1_, eps_).value, state, context);
  return FeedForwardHalf(tape, x, Normed(tape, tape.Input(mixed), norm1_post_), nullptr).value;
}

double Block::FlopsPerToken(int64_t sequence) const {
  return mixer_->FlopsPerToken(sequence) + ffn_.FlopsPerToken();
}

}  // namespace lt2
