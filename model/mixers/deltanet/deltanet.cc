#include "model/mixers/deltanet/deltanet.h"

#include "kernels/linear.h"
#include "model/init.h"
#include "model/mixers/common/head_widths.h"
#include "model/mixers/common/scan_limits.h"

namespace lt2 {

DeltaMixer::Options DeltaNet::ReadOptions(const ModelConfig& config, const ConfigTable& table) {
  Options o = ReadCommon(config, table);
  o.head_dim = ReadHeadWidth(table, "expand_k", 1, config.width, o.heads);
  o.v_dim = ReadHeadWidth(table, "expand_v", 1, config.width, o.heads);
  table.Read("gate", &o.gate);
  return o;
}

std::vector<SizeLimit> DeltaNet::GpuLimits(const Options& options, const RunSizes&) {
  return {ScanKeyLimit("expand_k", options.head_dim, options.heads)};
}

DeltaNet::DeltaNet(const Options& options, const MixerSite& site) : DeltaMixer(options, site) {
  if (options.gate) {
    g_proj_ =
        &site.scope.Add("g_proj.weight", {value_width(), options.width},
                        ProjectionInit(options.width), /*decay=*/true, site.Rows(options.v_heads));
  }
}

Var DeltaNet::OutputGate(Tape& tape, const Var& x_ND) {
  return g_proj_ == nullptr ? Var() : Linear(tape, x_ND, *g_proj_);
}

double DeltaNet::GateFlops() const {
  return options_.gate ? 2.0 * static_cast<double>(options_.width * value_width()) : 0;
}

ForeignTable DeltaNet::ForeignNames() {
  ForeignTable table = CommonForeignNames();
  table.params.push_back({"g_proj.weight", "g_proj.weight"});
  table.options.push_back({"expand_k", "expand_k"});
  table.options.push_back({"gate", "use_gate"});
  return table;
}

}  // namespace lt2
