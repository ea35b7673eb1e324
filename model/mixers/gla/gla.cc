#include "model/mixers/gla/gla.h"

#include "core/config_range.h"
#include "kernels/activation.h"
#include "kernels/add_bias.h"
#include "kernels/linear.h"
#include "model/init.h"
#include "model/mixers/common/by_heads.h"

namespace lt2 {

GatedLinearAttention::Options GatedLinearAttention::ReadOptions(const ModelConfig& config,
                                                                const ConfigTable& table) {
  Options o{ReadCommon(config, table, 0.5, 1), /*gate_rank=*/16, /*gate_divisor=*/16};
  ReadInRange(table, "gate_rank", 1, 4096, &o.gate_rank);
  ReadPositive(table, "gate_divisor", &o.gate_divisor);
  return o;
}

GatedLinearAttention::GatedLinearAttention(const Options& options, const MixerSite& site)
    : AdditiveMixer(options, site),
      gate_divisor_(options.gate_divisor),
      g_proj_(site.scope.Add("g_proj.weight", {values(), options.width},
                             ProjectionInit(options.width), /*decay=*/true,
                             site.Rows(options.head.heads))),
      gate_down_(site.scope.Add("gk_proj.0.weight", {options.gate_rank, options.width},
                                ProjectionInit(options.width))),
      gate_up_(site.scope.Add("gk_proj.1.weight", {k_.channels(), options.gate_rank},
                              ProjectionInit(options.width), /*decay=*/true,
                              site.Rows(options.head.kv_heads))),
      gate_bias_(site.scope.Add("gk_proj.1.bias", {k_.channels()}, {.kind = Init::Kind::kZeros},
                                /*decay=*/false, site.Rows(options.head.kv_heads))) {}

Var GatedLinearAttention::Mix(Tape& tape, const Var& x_ND, const RecurrentRun& run) {
  const Heads heads = Project(tape, x_ND, run);
  const Var logits =
      AddBias(tape, Linear(tape, Linear(tape, x_ND, gate_down_), gate_up_), gate_bias_);
  const Var g = ByHeads(LogSigmoid(tape, logits, 1 / gate_divisor_), options_.head.k);
  Var gate;
  const Var o = run.Scan(tape,
                         ScanAdditiveInputs{.q_NHK = heads.q,
                                            .k_NHK = ForEachQuery(tape, heads.k, heads),
                                            .v_NGV = ForEachQuery(tape, heads.v, heads),
                                            .g_NGK = ForEachQuery(tape, g, heads)},
                         scale(), /*entry=*/0, [&] { gate = Linear(tape, x_ND, g_proj_); });
  return SwishGated(tape, o, gate, run);
}

double GatedLinearAttention::MoreFlops() const {
  const int64_t rank = gate_down_.spec.shape[0];
  return 2 * static_cast<double>(options_.width * (values() + rank) + rank * k_.channels());
}

ForeignTable GatedLinearAttention::ForeignNames() {
  ForeignTable table = CommonForeignNames();
  for (const char* name :
       {"g_proj.weight", "gk_proj.0.weight", "gk_proj.1.weight", "gk_proj.1.bias"}) {
    table.params.push_back({name, name});
  }
  table.params.push_back({"o_norm.weight", "g_norm_swish_gate.weight"});
  table.options.push_back({"gate_rank", "gate_low_rank_dim"});
  table.options.push_back({"gate_divisor", "gate_logit_normalizer"});
  return table;
}

}  // namespace lt2
