#include "model/mixers/retnet/retnet.h"

#include <cmath>

#include "core/config_range.h"
#include "core/strings.h"
#include "kernels/linear.h"
#include "model/init.h"

namespace lt2 {
namespace {

std::vector<double> LogGammas(int64_t heads) {
  std::vector<double> log_gammas;
  for (int64_t h = 0; h < heads; ++h) {
    log_gammas.push_back(std::log1p(-std::exp2(static_cast<double>(-5 - h))));
  }
  return log_gammas;
}

}  // namespace

RetNet::Options RetNet::ReadOptions(const ModelConfig& config, const ConfigTable& table) {
  Options o{ReadCommon(config, table, 1, 2), RopeOptions{}};
  ReadPositive(table, "rope_theta", &o.rope.theta);
  const bool interleaved = table.ReadChoice("rope_style", {"half", "interleaved"}, 0) == 1;
  o.rope.style = interleaved ? RopeStyle::kInterleaved : RopeStyle::kHalf;
  if (o.head.k % 2 != 0) {
    table.AddError("expand_k", StrCat("heads of ", o.head.k,
                                      " channels cannot be rotated: the width must be even"));
  }
  return o;
}

RetNet::RetNet(const Options& options, const MixerSite& site)
    : AdditiveMixer(options, site),
      rope_(options.rope),
      log_gamma_(LogGammas(options.head.heads)),
      g_proj_(site.scope.Add("g_proj.weight", {values(), options.width},
                             ProjectionInit(options.width), /*decay=*/true,
                             site.Rows(options.head.heads))) {}

Var RetNet::Mix(Tape& tape, const Var& x_ND, const RecurrentRun& run) {
  const Heads heads = Project(tape, x_ND, run);
  const int64_t count = heads.q.value.dim(1), first = run.FirstHead(count);
  const Tensor& log_gamma = log_gamma_.On(x_ND.value.device(), x_ND.value.dtype());
  Var gate;
  const Var o =
      run.Scan(tape,
               ScanAdditiveInputs{
                   .q_NHK = Rope(tape, heads.q, run.positions(), rope_),
                   .k_NHK = ForEachQuery(tape, Rope(tape, heads.k, run.positions(), rope_), heads),
                   .v_NGV = ForEachQuery(tape, heads.v, heads),
                   .g_NG = {},
                   .log_gamma_G = log_gamma.Rows(first, first + count)},
               scale(), /*entry=*/0, [&] { gate = Linear(tape, x_ND, g_proj_); });
  return SwishGated(tape, o, gate, run);
}

double RetNet::MoreFlops() const { return 2 * static_cast<double>(options_.width * values()); }

ForeignTable RetNet::ForeignNames() {
  ForeignTable table = CommonForeignNames();
  table.params.push_back({"g_proj.weight", "g_proj.weight"});
  table.params.push_back({"o_norm.weight", "g_norm_swish_gate.weight"});
  return table;
}

}  // namespace lt2
