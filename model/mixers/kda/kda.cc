#include "model/mixers/kda/kda.h"

#include "kernels/add_bias.h"
#include "kernels/decay_gate.h"
#include "kernels/gated_rms_norm.h"
#include "kernels/linear.h"
#include "model/init.h"

namespace lt2 {

KimiDeltaAttention::Options KimiDeltaAttention::ReadOptions(const ModelConfig& config,
                                                            const ConfigTable& table) {
  Options o{ReadCommon(config, table), /*gate_bias=*/true};
  ReadHeadShape(table, config.width / o.heads, /*expand_v=*/1, &o);
  table.Read("gate_bias", &o.gate_bias);
  return o;
}

KimiDeltaAttention::KimiDeltaAttention(const Options& options, const MixerSite& site)
    : DeltaMixer(options, site),
      f_down_(site.scope.Add("f_proj.0.weight", {options.v_dim, options.width},
                             ProjectionInit(options.width))),
      f_up_(site.scope.Add("f_proj.1.weight", {options.v_heads * options.head_dim, options.v_dim},
                           ProjectionInit(options.width))),
      g_down_(site.scope.Add("g_proj.0.weight", {options.v_dim, options.width},
                             ProjectionInit(options.width))),
      g_up_(site.scope.Add("g_proj.1.weight", {value_width(), options.v_dim},
                           ProjectionInit(options.width))),
      A_log_(site.scope.Add("A_log", {options.v_heads},
                            {.kind = Init::Kind::kLogUniform, .a = 1, .b = 16}, /*decay=*/false)),
      dt_bias_(site.scope.Add("dt_bias", {options.v_heads * options.head_dim},
                              {.kind = Init::Kind::kInverseSoftplusLogUniform, .a = 1e-3, .b = 0.1},
                              /*decay=*/false)) {
  if (options.gate_bias) {
    g_bias_ = &site.scope.Add("g_proj.1.bias", {value_width()}, {.kind = Init::Kind::kZeros},
                              /*decay=*/false);
  }
}

DeltaMixer::LogDecay KimiDeltaAttention::Decay(Tape& tape, const Var& x_ND) {
  const Var f = Linear(tape, Linear(tape, x_ND, f_down_), f_up_);
  const Shape channels = {f.value.dim(0), options_.v_heads, options_.head_dim};
  return {.g_NGK = Reshape(DecayGate(tape, f, A_log_, dt_bias_), channels)};
}

Var KimiDeltaAttention::GatedOutput(Tape& tape, const Var& o_NGV, const Var& x_ND) {
  Var gate = Linear(tape, Linear(tape, x_ND, g_down_), g_up_);
  if (g_bias_ != nullptr) gate = AddBias(tape, gate, *g_bias_);
  return GatedRmsNorm(tape, Reshape(o_NGV, gate.shape()), gate, o_norm_, options_.norm_eps,
                      GateKind::kSigmoid);
}

double KimiDeltaAttention::GateFlops() const {
  const int64_t decays = options_.v_heads * options_.head_dim;
  return 2.0 * static_cast<double>(options_.v_dim * (2 * options_.width + decays + value_width()));
}

ForeignTable KimiDeltaAttention::ForeignNames() {
  ForeignTable table = CommonForeignNames();
  for (const char* name : {"f_proj.0.weight", "f_proj.1.weight", "g_proj.0.weight",
                           "g_proj.1.weight", "g_proj.1.bias", "A_log", "dt_bias"}) {
    table.params.push_back({name, name});
  }
  table.options.push_back({"v_heads", "num_v_heads"});
  table.options.push_back({"head_dim", "head_dim"});
  return table;
}

}  // namespace lt2
