#include "model/looped_stack.h"

#include <cmath>

#include "kernels/loop_residual.h"
#include "kernels/probe.h"
#include "kernels/rms_norm.h"
#include "kernels/squared_norm.h"
#include "parallel/reduce_scalars.h"

namespace lt2 {
namespace {

// Over the ranks that share the row of tokens: `of_tokens`, what is between layers, where these are
// shared out; `of_heads` over those that hold other heads too. One after the other.
std::vector<double> SumOverRanks(const ForwardOptions& options, std::vector<double> of_tokens,
                                 const std::vector<double>& of_heads) {
  TensorShard* const tensor = options.tensor;
  std::vector<double> sums = of_heads;
  if (tensor != nullptr && !of_heads.empty()) ReduceScalars(tensor->tp(), sums, {});
  if (tensor != nullptr && tensor->sequence()) ReduceScalars(tensor->tp(), of_tokens, {});
  sums.insert(sums.begin(), of_tokens.begin(), of_tokens.end());
  if (options.shard != nullptr) options.shard->SumOverRow(sums);
  return sums;
}

double SumOfSquares(Stream& stream, const Tensor& x) {
  const Tensor sum = Tensor::Zeros({1}, DType::kF64, x.device());
  SquaredNorm(stream, {.x = x, .sum = sum});
  return sum.ToDoubles()[0];
}

// Those of this stage. Of the others what every stage holds, in the order of the whole model.
std::vector<std::unique_ptr<Block>> MakeBlocks(const ModelConfig& config, const ParamScope& root,
                                               const TensorSplit& split, const StagePlace& place,
                                               std::vector<int>* declared) {
  std::vector<std::unique_ptr<Block>> blocks;
  const std::vector<std::string> kinds = *LayerKinds(config);
  for (int64_t i = 0; i < config.layers; ++i) {
    const bool here = place.Begin(config.layers) <= i && i < place.End(config.layers);
    ParamSet elsewhere;
    const ParamScope at = here ? root : ParamScope(elsewhere);
    const MixerSite site{.scope = at.Sub("layers").Sub(std::to_string(i)),
                         .root = at,
                         .layer = i,
                         .layers = config.layers,
                         .split = split};
    auto block = std::make_unique<Block>(config, kinds[i], site);
    if (here) {
      blocks.push_back(std::move(block));
      declared->push_back(root.declared());
    }
    for (const ParamSpec& spec : elsewhere.specs()) {
      if (spec.across_stages) root.Hold(spec);
    }
  }
  return blocks;
}

Param* MakeResidual(const ModelConfig& config, const ParamScope& root, const TensorSplit& split) {
  if (!config.loop_residual) return nullptr;
  return &root.AddElementwise("loop.residual", {config.loops, config.width},
                              {.kind = Init::Kind::kZeros}, /*decay=*/false, BetweenLayers(split));
}

Param& MakeNorm(const ModelConfig& config, const ParamScope& root, const TensorSplit& split) {
  return root.Add("norm.weight", {config.width}, {.kind = Init::Kind::kOnes}, /*decay=*/false,
                  BetweenLayers(split));
}

}  // namespace

LoopedStack::LoopedStack(const ModelConfig& config, const ParamScope& root,
                         const TensorSplit& split, const StagePlace& place)
    : loops_(config.loops),
      loop_norm_(config.loop_norm),
      eps_(config.norm_eps),
      first_block_(place.Begin(config.layers)),
      blocks_(MakeBlocks(config, root, split, place, &declared_)),
      rho_(place.first() ? MakeResidual(config, root, split) : nullptr),
      norm_(place.first() ? &MakeNorm(config, root, split) : nullptr) {}

Var LoopedStack::EndLoop(Tape& tape, const Var& h_ND, const Var& previous_ND, int64_t loop) {
  Var out = h_ND;
  if (rho_ != nullptr) out = LoopResidual(tape, out, previous_ND, *rho_, static_cast<int>(loop));
  return loop_norm_ ? RmsNorm(tape, out, *norm_, eps_) : out;
}

Var LoopedStack::Normed(Tape& tape, const Var& h_ND) {
  return loop_norm_ ? h_ND : RmsNorm(tape, h_ND, *norm_, eps_);
}

std::vector<Var> LoopedStack::RunBlocks(Tape& tape, const Var& h_ND, int64_t loop,
                                        const Documents& documents, const ForwardOptions& options,
                                        const Tensor& first_token_mass) {
  const auto before = loop == 0 ? options.before_params : nullptr;
  const RecomputePolicy recompute = options.recompute;
  const bool again = recompute == RecomputePolicy::kBlock || recompute == RecomputePolicy::kLoop;
  TensorShard* const tensor = options.tensor;
  std::vector<Var> out = {h_ND};
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const PlaceScope here({.loop = static_cast<int16_t>(loop),
                           .layer = static_cast<int16_t>(first_block_ + static_cast<int64_t>(i))});
    if (before) before(declared_[i]);
    std::vector<MixerState>* const states = options.states;
    const MixerContext context{
        .documents = documents,
        .shard = options.shard,
        .heads = tensor,
        .sums = tensor != nullptr && tensor->sequence() ? tensor : nullptr,
        .loop = loop,
        .state = states == nullptr ? nullptr : &(*states)[loop * blocks_.size() + i],
        .first_token_mass = first_token_mass};
    // By value: a recomputed block runs again in backward, when this call has returned.
    const auto block = [this, i, context, tensor, recompute](Tape& t, std::span<const Var> x) {
      return blocks_[i]->Forward(t, x[0], context, tensor, recompute);
    };
    const std::span<const Var> x(&out[0], 1);
    std::vector<Var> next = again ? tape.Recompute(x, block) : block(tape, x);
    out[0] = next[0];
    out.insert(out.end(), next.begin() + 1, next.end());
  }
  if (before) before(kAllParams);
  return out;
}

std::vector<Var> LoopedStack::RunLoop(Tape& tape, const Var& h_ND, int64_t loop,
                                      const Documents& documents, const ForwardOptions& options,
                                      const Tensor& first_token_mass) {
  const auto whole = [this, loop, &documents, options, first_token_mass](
                         Tape& t, std::span<const Var> in) -> std::vector<Var> {
    std::vector<Var> out = RunBlocks(t, in[0], loop, documents, options, first_token_mass);
    out[0] = EndLoop(t, out[0], in[0], loop);
    return out;
  };
  const std::span<const Var> in(&h_ND, 1);
  return options.recompute == RecomputePolicy::kLoop ? tape.Recompute(in, whole) : whole(tape, in);
}

std::vector<double> LoopedStack::MassOverRanks(const Tensor& first_token_mass,
                                               const ForwardOptions& options) {
  return SumOverRanks(options, {}, first_token_mass.ToDoubles());
}

Var LoopedStack::Observe(Tape& tape, const Var& h_ND, int64_t loop, const ForwardOptions& options) {
  if (options.diagnostics == nullptr || h_ND.value.on_meta()) return h_ND;
  const std::vector<double> sums = SumOverRanks(
      options, {SumOfSquares(tape.stream(), h_ND.value), static_cast<double>(h_ND.value.size())},
      {});
  options.diagnostics->hidden_rms[loop] = std::sqrt(sums[0] / sums[1]);
  return Probe(tape, h_ND, [&tape, loop, options](const Tensor& dh) {
    options.diagnostics->gradient_norm[loop] =
        std::sqrt(SumOverRanks(options, {SumOfSquares(tape.stream(), dh)}, {})[0]);
  });
}

LoopedStack::Output LoopedStack::Forward(Tape& tape, Var h_ND, const Documents& documents,
                                         const ForwardOptions& options, const Readout& readout) {
  LoopDiagnostics* diagnostics = options.diagnostics;
  if (diagnostics != nullptr) diagnostics->Clear(loops_);
  Output output;
  for (int64_t loop = 0; loop < loops_; ++loop) {
    Tensor mass;
    if (diagnostics != nullptr) mass = Tensor::Zeros({2}, DType::kF64, tape.device());
    const std::vector<Var> out = RunLoop(tape, h_ND, loop, documents, options, mass);
    output.auxiliary_losses.insert(output.auxiliary_losses.end(), out.begin() + 1, out.end());
    h_ND = Observe(tape, out[0], loop, options);
    if (diagnostics != nullptr && !h_ND.value.on_meta()) {
      diagnostics->SetMass(loop, MassOverRanks(mass, options));
    }
    if (readout) readout(loop, h_ND);
  }
  output.h_ND = h_ND;
  return output;
}

Tensor LoopedStack::Step(Stream& stream, Tensor h_BD, std::vector<MixerState>& states,
                         StepContext context, const Readout& readout) {
  CHECK_EQ(static_cast<int64_t>(states.size()), loops_ * static_cast<int64_t>(blocks_.size()));
  Tape tape(stream);
  tape.set_recording(false);
  for (int64_t loop = 0; loop < loops_; ++loop) {
    const Tensor previous = h_BD;
    context.loop = loop;
    for (size_t i = 0; i < blocks_.size(); ++i) {
      h_BD = blocks_[i]->Step(stream, h_BD, states[loop * blocks_.size() + i], context);
    }
    const Var h = EndLoop(tape, tape.Input(h_BD), tape.Input(previous), loop);
    if (readout) readout(loop, h);
    h_BD = h.value;
  }
  return h_BD;
}

double LoopedStack::FlopsPerToken(int64_t sequence) const {
  double one_loop = 0;
  for (const auto& block : blocks_) one_loop += block->FlopsPerToken(sequence);
  return one_loop * static_cast<double>(loops_);
}

}  // namespace lt2
