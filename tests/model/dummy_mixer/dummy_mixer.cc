#include "tests/model/dummy_mixer/dummy_mixer.h"

#include "core/config_range.h"
#include "kernels/gated_product.h"
#include "kernels/linear.h"
#include "kernels/short_conv.h"
#include "model/init.h"

namespace lt2 {
namespace {

constexpr int64_t kConvWidth = 4;

}  // namespace

DummyMixer::Options DummyMixer::ReadOptions(const ModelConfig& config, const ConfigTable& table) {
  Options o{.width = config.width, .channels = config.width, .gate = true};
  ReadInRange(table, "channels", 1, 4096, &o.channels);
  table.Read("gate", &o.gate);
  return o;
}

DummyMixer::DummyMixer(const Options& options, const MixerSite& site)
    : options_(options),
      x_proj_(site.scope.Add("x_proj.weight", {options.channels, options.width},
                             ProjectionInit(options.width), /*decay=*/true,
                             site.Rows(options.channels))),
      conv_(site.scope.Add("conv1d.weight", {options.channels, kConvWidth},
                           {.kind = Init::Kind::kUniform, .a = -0.5, .b = 0.5}, /*decay=*/true,
                           site.Rows(options.channels))),
      o_proj_(site.scope.Add("o_proj.weight", {options.width, options.channels},
                             ProjectionInit(options.width), /*decay=*/true,
                             site.Columns(options.channels))) {
  if (options.gate) {
    gate_proj_ =
        &site.scope.Add("gate_proj.weight", {options.channels, options.width},
                        ProjectionInit(options.width), /*decay=*/true, site.Rows(options.channels));
  }
}

Var DummyMixer::Output(Tape& tape, const Var& convolved_NC, const Var& x_ND, RowSums* sums) {
  Var o = convolved_NC;
  if (gate_proj_ != nullptr) o = SigmoidGate(tape, o, Linear(tape, x_ND, *gate_proj_));
  return LinearSum(tape, o, o_proj_, sums);
}

MixerOutput DummyMixer::Forward(Tape& tape, const Var& x_ND, const MixerContext& context) {
  const Documents& documents = context.documents;
  const Var x = Linear(tape, x_ND, x_proj_);
  if (context.state != nullptr) {
    ShortConvTail(tape.stream(),
                  {.x_NC = x.value, .documents = documents, .tail_out_DPC = (*context.state)[0]});
  }
  const Var convolved = ShortConv(tape, x, conv_, nullptr, /*silu=*/false, documents);
  return {.y_ND = Output(tape, convolved, x_ND, context.sums)};
}

Tensor DummyMixer::Step(Stream& stream, const Tensor& x_BD, MixerState& state, const StepContext&) {
  Tape tape(stream);
  tape.set_recording(false);
  const Var x = tape.Input(x_BD), projected = Linear(tape, x, x_proj_);
  Tensor y = Tensor::Empty(projected.shape(), x_BD.dtype(), x_BD.device());
  ShortConvStep(stream, {.x_BC = projected.value,
                         .w_CW = conv_.value,
                         .silu = false,
                         .tail_BPC = state[0],
                         .y_BC = y});
  return Output(tape, tape.Input(y), x).value;
}

std::vector<StateEntry> DummyMixer::StateSpec(int64_t sequences, int64_t /*capacity*/,
                                              DType dtype) const {
  return {{"tail", {sequences, kConvWidth - 1, options_.channels}, dtype}};
}

double DummyMixer::FlopsPerToken(int64_t /*sequence*/) const {
  const double matrix = static_cast<double>(options_.channels * options_.width);
  return 2 * matrix * (options_.gate ? 3 : 2) +
         2 * static_cast<double>(kConvWidth * options_.channels);
}

ForeignTable DummyMixer::ForeignNames() {
  return {.params = {{"x_proj.weight", "in_proj.weight"},
                     {"conv1d.weight", "conv1d.weight"},
                     {"gate_proj.weight", "gate_proj.weight"},
                     {"o_proj.weight", "out_proj.weight"}},
          .options = {{"channels", "channels"}, {"gate", "use_gate"}}};
}

}  // namespace lt2
