#include "model/mixers/kda/kda.h"

#include "kernels/add_bias.h"
#include "kernels/decay_gate.h"
#include "kernels/gated_rms_norm.h"
#include "kernels/linear.h"
#include "model/init.h"
#include "model/mixers/common/by_heads.h"

namespace lt2 {

KimiDeltaAttention::Options KimiDeltaAttention::ReadOptions(const ModelConfig& config,
                                                            const ConfigTable& table) {
  Options o{ReadCommon(config, table), /*gate_bias=*/true, /*full_gate=*/false, /*zero_dt=*/false};
  ReadHeadShape(table, config.width / o.heads, /*expand_v=*/1, &o);
  table.Read("gate_bias", &o.gate_bias);
  table.Read("full_gate", &o.full_gate);
  o.zero_dt = table.ReadChoice("dt_init", {"log-uniform", "zeros"}, 0) == 1;
  return o;
}

KimiDeltaAttention::KimiDeltaAttention(const Options& options, const MixerSite& site)
    : DeltaMixer(options, site),
      f_down_(site.scope.Add("f_proj.0.weight", {options.v_dim, options.width},
                             ProjectionInit(options.width))),
      f_up_(site.scope.Add("f_proj.1.weight", {options.v_heads * options.head_dim, options.v_dim},
                           ProjectionInit(options.width), /*decay=*/true,
                           site.Rows(options.v_heads))),
      A_log_(site.scope.Add("A_log", {options.v_heads},
                            {.kind = Init::Kind::kLogUniform, .a = 1, .b = 16},
                            /*decay=*/false, site.Rows(options.v_heads))),
      dt_bias_(site.scope.Add(
          "dt_bias", {options.v_heads * options.head_dim},
          options.zero_dt
              ? Init{.kind = Init::Kind::kZeros}
              : Init{.kind = Init::Kind::kInverseSoftplusLogUniform, .a = 1e-3, .b = 0.1},
          /*decay=*/false, site.Rows(options.v_heads))) {
  const auto gate = [&](const std::string& name, int64_t rows, int64_t columns,
                        const ParamSplit& split) {
    return &site.scope.Add(name, {rows, columns}, ProjectionInit(options.width), /*decay=*/true,
                           split);
  };
  const std::string last = options.full_gate ? "g_proj" : "g_proj.1";
  const ParamSplit by_heads = site.Rows(options.v_heads);
  if (!options.full_gate) g_down_ = gate("g_proj.0.weight", options.v_dim, options.width, {});
  g_up_ = gate(last + ".weight", value_width(), options.full_gate ? options.width : options.v_dim,
               by_heads);
  if (options.gate_bias) {
    g_bias_ = &site.scope.Add(last + ".bias", {value_width()}, {.kind = Init::Kind::kZeros},
                              /*decay=*/false, by_heads);
  }
}

DeltaMixer::LogDecay KimiDeltaAttention::Decay(Tape& tape, const Var& x_ND, const Var& /*a_NG*/) {
  const Var f = Linear(tape, Linear(tape, x_ND, f_down_), f_up_);
  return {.g_NGK = ByHeads(DecayGate(tape, f, A_log_, dt_bias_), options_.head_dim)};
}

Var KimiDeltaAttention::OutputGate(Tape& tape, const Var& x_ND) {
  const Var gate = Linear(tape, g_down_ == nullptr ? x_ND : Linear(tape, x_ND, *g_down_), *g_up_);
  return g_bias_ == nullptr ? gate : AddBias(tape, gate, *g_bias_);
}

Var KimiDeltaAttention::GatedOutput(Tape& tape, const Var& o_NGV, const Var& gate_NC) {
  return GatedRmsNorm(tape, FlatHeads(o_NGV), gate_NC, o_norm_, options_.norm_eps,
                      GateKind::kSigmoid);
}

double KimiDeltaAttention::GateFlops() const {
  int64_t weights = f_down_.spec.shape.size() + f_up_.spec.shape.size() + g_up_->spec.shape.size();
  if (g_down_ != nullptr) weights += g_down_->spec.shape.size();
  return 2 * static_cast<double>(weights);
}

ForeignTable KimiDeltaAttention::ForeignNames() {
  ForeignTable table = CommonForeignNames();
  for (const char* name :
       {"f_proj.0.weight", "f_proj.1.weight", "g_proj.0.weight", "g_proj.1.weight", "g_proj.1.bias",
        "g_proj.weight", "g_proj.bias", "A_log", "dt_bias"}) {
    table.params.push_back({name, name});
  }
  table.options.push_back({"head_dim", "head_dim"});
  return table;
}

}  // namespace lt2
