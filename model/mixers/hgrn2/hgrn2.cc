#include "model/mixers/hgrn2/hgrn2.h"

#include <cmath>

#include "core/config_range.h"
#include "core/strings.h"
#include "kernels/activation.h"
#include "kernels/hgrn_gate.h"
#include "kernels/linear.h"
#include "model/init.h"
#include "model/mixers/common/by_heads.h"
#include "model/mixers/common/head_widths.h"
#include "model/mixers/common/scan_limits.h"

namespace lt2 {
namespace {

// What StateSpec lists, in its order; the tails only with convolutions.
enum State { kScanState, kQueryTail, kForgetTail, kInputTail };

Convolved::Conv ConvOf(const Hgrn2::Options& options) {
  return options.conv ? Convolved::Conv::kPlain : Convolved::Conv::kNone;
}

}  // namespace

Hgrn2::Options Hgrn2::ReadOptions(const ModelConfig& config, const ConfigTable& table) {
  Options o{
      .width = config.width, .heads = 1, .conv = false, .learn_bounds = false, .norm_eps = 1e-5};
  int64_t expand_ratio = config.width / config.heads;
  ReadInRange(table, "expand_ratio", 1, kMostHeads, &expand_ratio);
  table.Read("conv", &o.conv);
  table.Read("learn_bounds", &o.learn_bounds);
  ReadPositive(table, "norm_eps", &o.norm_eps);
  if (table.Wrong("expand_ratio")) return o;
  if (o.width % expand_ratio != 0) {
    table.AddError("expand_ratio", StrCat(expand_ratio, " does not divide width ", o.width));
  } else {
    o.heads = o.width / expand_ratio;
  }
  return o;
}

std::vector<SizeLimit> Hgrn2::GpuLimits(const Options& options, const RunSizes&) {
  return {ScanKeyLimit("expand_ratio", options.head_dim(), options.heads, /*alone=*/true)};
}

Hgrn2::Hgrn2(const Options& options, const MixerSite& site)
    : options_(options),
      layer_(site.layer),
      q_(site, "q", options.heads, options.head_dim(), options.width, ConvOf(options)),
      f_(site, "f", options.heads, options.head_dim(), options.width, ConvOf(options)),
      i_(site, "i", options.heads, options.head_dim(), options.width, ConvOf(options)),
      o_proj_(site.scope.Add("o_proj.weight", {options.width, options.width},
                             ProjectionInit(options.width), /*decay=*/true,
                             site.Columns(options.heads))),
      o_norm_(site.scope.Add("o_norm.weight", {options.width}, {.kind = Init::Kind::kOnes},
                             /*decay=*/false, site.Rows(options.heads))),
      bound_(std::vector<double>(
          options.width, static_cast<double>(site.layer) / static_cast<double>(site.layers))) {
  if (options.learn_bounds) {
    bounds_ = &site.root.AddShared("hgrn2.lower_bounds", {site.layers, options.width},
                                   {.kind = Init::Kind::kZeros}, /*decay=*/false,
                                   site.Columns(options.heads));
  }
}

Var Hgrn2::Bound(Tape& tape, const Tensor& f_NC) {
  if (bounds_ != nullptr) return LowerBound(tape, *bounds_, layer_);
  return tape.Input(bound_.On(tape.device(), f_NC.dtype()).Rows(0, f_NC.dim(1)));
}

Var Hgrn2::Mix(Tape& tape, const Var& x_ND, const RecurrentRun& run) {
  const auto by_heads = [&](const Var& x) { return ByHeads(x, options_.head_dim()); };
  const auto projected = [&](const Convolved& part, State tail,
                             const Meanwhile& meanwhile = Nothing) {
    return part(tape, x_ND, run, /*silu=*/false, tail, meanwhile);
  };
  Var q, i;
  const auto inputs = [&] { i = projected(i_, kInputTail); };
  const auto queries = [&] { q = projected(q_, kQueryTail, inputs); };
  const Var f = projected(f_, kForgetTail, queries);
  const HgrnGates gates = HgrnGate(tape, f, Bound(tape, f.value));
  const Var o = run.Scan(tape,
                         ScanAdditiveInputs{.q_NHK = by_heads(Silu(tape, q)),
                                            .k_NHK = by_heads(gates.k_ND),
                                            .v_NGV = by_heads(i),
                                            .g_NGK = by_heads(gates.g_ND)},
                         1 / std::sqrt(static_cast<double>(options_.head_dim())), kScanState);
  return LinearSum(tape, run.Normed(tape, FlatHeads(o), o_norm_, options_.norm_eps), o_proj_,
                   run.sums());
}

std::vector<StateEntry> Hgrn2::StateSpec(int64_t sequences, int64_t /*capacity*/,
                                         DType dtype) const {
  const int64_t head_dim = options_.head_dim();
  std::vector<StateEntry> spec = {
      {"state", {sequences, options_.heads, head_dim, head_dim}, dtype}};
  for (const Convolved* part : {&q_, &f_, &i_}) part->AddState(sequences, dtype, &spec);
  return spec;
}

double Hgrn2::FlopsPerToken(int64_t /*sequence*/) const {
  const double width = static_cast<double>(options_.width);
  return q_.flops() + f_.flops() + i_.flops() + 2 * width * width +
         4 * width * width / static_cast<double>(options_.heads);
}

ForeignTable Hgrn2::ForeignNames() {
  ForeignTable table{.options = {{"expand_ratio", "expand_ratio", 128},
                                 {"conv", "use_short_conv"},
                                 {"learn_bounds", "use_lower_bound"}}};
  for (const char* name : {"q_proj.weight", "f_proj.weight", "i_proj.weight", "o_proj.weight",
                           "q_conv1d.weight", "f_conv1d.weight", "i_conv1d.weight"}) {
    table.params.push_back({name, name});
  }
  table.params.push_back({"o_norm.weight", "g_norm.weight"});
  table.params.push_back({"hgrn2.lower_bounds", "lower_bounds"});  // of the whole model
  return table;
}

}  // namespace lt2
