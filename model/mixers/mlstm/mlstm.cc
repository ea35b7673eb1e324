#include "model/mixers/mlstm/mlstm.h"

#include <cmath>

#include "core/config_range.h"
#include "core/strings.h"
#include "kernels/gated_product.h"
#include "kernels/layer_norm.h"
#include "kernels/linear.h"
#include "kernels/scan_mlstm.h"
#include "kernels/soft_cap.h"
#include "model/init.h"

namespace lt2 {
namespace {

constexpr int64_t kMostHeads = 4096;  // and the width of one

// The width of a head if all of them together have factor · width channels. Reads the factor.
int64_t HeadWidth(const ConfigTable& table, std::string_view key, double factor, int64_t width,
                  int64_t heads) {
  ReadPositive(table, key, &factor);
  if (table.Wrong(key) || table.Wrong("heads")) return 0;
  const double each = factor * static_cast<double>(width) / static_cast<double>(heads);
  if (each != std::floor(each) || each < 1 || each > kMostHeads) {
    table.AddError(key, StrCat(factor, " × width ", width, " / heads ", heads,
                               " must be an integer from 1 to ", kMostHeads));
    return 0;
  }
  return std::llround(each);
}

}  // namespace

Mlstm::Options Mlstm::ReadOptions(const ModelConfig& config, const ConfigTable& table) {
  Options o{.width = config.width, .heads = config.heads, .soft_cap = 15, .norm_eps = 1e-6};
  ReadInRange(table, "heads", 1, kMostHeads, &o.heads);
  ReadPositive(table, "soft_cap", &o.soft_cap);
  ReadPositive(table, "norm_eps", &o.norm_eps);
  o.linearize = table.ReadChoice("init", {"large", "linearize"}, 0) == 1;
  o.head_dim = HeadWidth(table, "qk_factor", 0.5, o.width, o.heads);
  o.v_dim = HeadWidth(table, "v_factor", 1, o.width, o.heads);
  return o;
}

Mlstm::Mlstm(const Options& options, const MixerSite& site)
    : options_(options),
      scale_(1 / std::sqrt(static_cast<double>(options.head_dim))),
      q_(site.scope.Add("q.weight", {key_width(), options.width}, ProjectionInit(options.width))),
      k_(site.scope.Add("k.weight", {key_width(), options.width}, ProjectionInit(options.width))),
      v_(site.scope.Add("v.weight", {value_width(), options.width}, ProjectionInit(options.width))),
      o_gate_(site.scope.Add("ogate_preact.weight", {value_width(), options.width},
                             ProjectionInit(options.width))),
      i_(MakeGate(site, "igate_preact",
                  {.kind = Init::Kind::kLinear, .a = options.linearize ? -std::log(2.0) : -10})),
      f_(MakeGate(site, "fgate_preact",
                  {.kind = Init::Kind::kLinear,
                   .a = 3,
                   .b = options.heads > 1 ? 3 / static_cast<double>(options.heads - 1) : 0})),
      norm_(site.scope.Add("multihead_norm.weight", {value_width()}, {.kind = Init::Kind::kOnes},
                           /*decay=*/false)),
      out_(site.scope.Add("out_proj.weight", {options.width, value_width()},
                          ProjectionInit(options.width))) {}

Mlstm::Gate Mlstm::MakeGate(const MixerSite& site, const std::string& name,
                            const Init& bias) const {
  const double xavier = std::sqrt(6 / static_cast<double>(options_.width + options_.heads));
  const Init weight =
      options_.linearize ? Init{.kind = Init::Kind::kUniform, .a = -0.1 * xavier, .b = 0.1 * xavier}
                         : Init{.kind = Init::Kind::kZeros};
  return {site.scope.Add(name + ".weight", {options_.heads, options_.width}, weight),
          site.scope.Add(name + ".bias", {options_.heads}, bias, /*decay=*/false)};
}

Var Mlstm::GateOf(Tape& tape, const Var& x_ND, const Gate& gate) const {
  return SoftCap(tape, Linear(tape, x_ND, gate.weight), gate.bias, options_.soft_cap);
}

Var Mlstm::Output(Tape& tape, const Var& o_NHV, const Var& x_ND) const {
  const Var o = Reshape(o_NHV, {o_NHV.value.dim(0), value_width()});
  const Var normed = LayerNorm(tape, o, norm_, options_.v_dim, options_.norm_eps);
  return Linear(tape, SigmoidGate(tape, normed, Linear(tape, x_ND, o_gate_)), out_);
}

MixerOutput Mlstm::Forward(Tape& tape, const Var& x_ND, const MixerContext& context) {
  const int64_t tokens = context.documents.tokens();
  const Shape keys = {tokens, options_.heads, options_.head_dim};
  const bool prefill = context.state != nullptr;
  const ScanMlstmOutputs scan =
      ScanMlstm(tape,
                {.q_NHK = Reshape(Linear(tape, x_ND, q_), keys),
                 .k_NHK = Reshape(Linear(tape, x_ND, k_), keys),
                 .v_NHV = Reshape(Linear(tape, x_ND, v_), {tokens, options_.heads, options_.v_dim}),
                 .i_NH = GateOf(tape, x_ND, i_),
                 .f_NH = GateOf(tape, x_ND, f_)},
                scale_, context.documents, /*want_final_state=*/prefill);
  if (prefill) {
    (*context.state)[0].CopyFrom(scan.final_state_DHKW.value);
    (*context.state)[1].CopyFrom(scan.final_max_DH);
  }
  return {.y_ND = Output(tape, scan.o_NHV, x_ND)};
}

Tensor Mlstm::Step(Stream& stream, const Tensor& x_BD, MixerState& state, const StepContext&) {
  Tape tape(stream);
  tape.set_recording(false);
  const int64_t batch = x_BD.dim(0);
  const Shape keys = {batch, options_.heads, options_.head_dim};
  const Shape values = {batch, options_.heads, options_.v_dim};
  const Var x = tape.Input(x_BD);
  Tensor o = Tensor::Empty(values, x_BD.dtype(), x_BD.device());
  ScanMlstmStep(stream, {.q_BHK = Linear(tape, x, q_).value.Reshape(keys),
                         .k_BHK = Linear(tape, x, k_).value.Reshape(keys),
                         .v_BHV = Linear(tape, x, v_).value.Reshape(values),
                         .i_BH = GateOf(tape, x, i_).value,
                         .f_BH = GateOf(tape, x, f_).value,
                         .state_BHKW = state[0],
                         .max_BH = state[1],
                         .scale = scale_,
                         .o_BHV = o});
  return Output(tape, tape.Input(o), x).value;
}

std::vector<StateEntry> Mlstm::StateSpec(int64_t sequences, int64_t /*capacity*/,
                                         DType dtype) const {
  return {{"state", {sequences, options_.heads, options_.head_dim, options_.v_dim + 1}, dtype},
          {"max", {sequences, options_.heads}, dtype}};
}

double Mlstm::FlopsPerToken(int64_t /*sequence*/) const {
  const double width = static_cast<double>(options_.width);
  const double keys = static_cast<double>(key_width());
  const double values = static_cast<double>(value_width());
  const double heads = static_cast<double>(options_.heads);
  // Write and read: 2 K (V + 1) each.
  return 2 * width * (2 * keys + 3 * values + 2 * heads) +
         4 * keys * static_cast<double>(options_.v_dim + 1);
}

ForeignTable Mlstm::ForeignNames() {
  ForeignTable table{.options = {{"heads", "num_heads"},
                                 {"qk_factor", "qk_dim_factor"},
                                 {"v_factor", "v_dim_factor"},
                                 {"soft_cap", "gate_soft_cap"},
                                 {"norm_eps", "norm_eps"}}};
  for (const char* name : {"q.weight", "k.weight", "v.weight", "ogate_preact.weight",
                           "igate_preact.weight", "igate_preact.bias", "fgate_preact.weight",
                           "fgate_preact.bias", "multihead_norm.weight", "out_proj.weight"}) {
    table.params.push_back({name, name});
  }
  return table;
}

}  // namespace lt2
