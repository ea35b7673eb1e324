#include "model/mixers/gdn/gdn.h"

#include "kernels/decay_gate.h"
#include "kernels/linear.h"
#include "model/init.h"

namespace lt2 {

DeltaMixer::Options GatedDeltaNet::ReadOptions(const ModelConfig& config,
                                               const ConfigTable& table) {
  Options o = ReadCommon(config, table);
  ReadHeadShape(table, config.width * 3 / 4 / o.heads, /*expand_v=*/2, &o);
  o.gate = true;
  table.Read("gate", &o.gate);
  return o;
}

GatedDeltaNet::GatedDeltaNet(const Options& options, const MixerSite& site)
    : DeltaMixer(options, site),
      a_proj_(site.scope.Add("a_proj.weight", {options.v_heads, options.width},
                             ProjectionInit(options.width), /*decay=*/true,
                             site.Rows(options.v_heads))),
      A_log_(site.scope.Add("A_log", {options.v_heads},
                            {.kind = Init::Kind::kLogUniform, .a = 0.01, .b = 16},
                            /*decay=*/false, site.Rows(options.v_heads))),
      dt_bias_(site.scope.Add("dt_bias", {options.v_heads},
                              {.kind = Init::Kind::kInverseSoftplusLogUniform, .a = 1e-3, .b = 0.1},
                              /*decay=*/false, site.Rows(options.v_heads))) {
  if (options.gate) {
    g_proj_ =
        &site.scope.Add("g_proj.weight", {value_width(), options.width},
                        ProjectionInit(options.width), /*decay=*/true, site.Rows(options.v_heads));
  }
}

DeltaMixer::LogDecay GatedDeltaNet::Decay(Tape& tape, const Var& /*x_ND*/, const Var& a_NG) {
  return {.g_NG = DecayGate(tape, a_NG, A_log_, dt_bias_)};
}

Var GatedDeltaNet::OutputGate(Tape& tape, const Var& x_ND) {
  return g_proj_ == nullptr ? Var() : Linear(tape, x_ND, *g_proj_);
}

double GatedDeltaNet::GateFlops() const {
  const int64_t gates = options_.v_heads + (options_.gate ? value_width() : 0);
  return 2.0 * static_cast<double>(options_.width * gates);
}

ForeignTable GatedDeltaNet::ForeignNames() {
  ForeignTable table = CommonForeignNames();
  for (const char* name : {"a_proj.weight", "g_proj.weight", "A_log", "dt_bias"}) {
    table.params.push_back({name, name});
  }
  table.options.push_back({"head_dim", "head_dim"});
  table.options.push_back({"gate", "use_gate"});
  return table;
}

}  // namespace lt2
