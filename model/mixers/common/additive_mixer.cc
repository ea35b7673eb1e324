#include "model/mixers/common/additive_mixer.h"

#include <cmath>

#include "core/config_range.h"
#include "kernels/gated_rms_norm.h"
#include "kernels/linear.h"
#include "model/init.h"
#include "model/mixers/common/by_heads.h"
#include "model/mixers/common/scan_limits.h"

namespace lt2 {
namespace {

// What StateSpec lists, in its order; the tails only with convolutions.
enum State { kScanState, kQueryTail, kKeyTail, kValueTail };

Convolved::Conv ConvOf(const AdditiveMixer::Options& options) {
  return options.conv ? Convolved::Conv::kPlain : Convolved::Conv::kNone;
}

}  // namespace

AdditiveMixer::Options AdditiveMixer::ReadCommon(const ModelConfig& config,
                                                 const ConfigTable& table, double expand_k,
                                                 double expand_v) {
  Options o{.width = config.width,
            .head = ReadHeadWidths(table, config.width, config.heads, expand_k, expand_v),
            .conv = false,
            .norm_eps = 1e-5};
  table.Read("conv", &o.conv);
  ReadPositive(table, "norm_eps", &o.norm_eps);
  return o;
}

std::vector<HeadCount> AdditiveMixer::HeadCounts(const Options& o) {
  return {{"heads", o.head.heads}, {"kv_heads", o.head.kv_heads, /*shared=*/true}};
}

std::vector<SizeLimit> AdditiveMixer::GpuLimits(const Options& o, const RunSizes&) {
  return {ScanKeyLimit("expand_k", o.head.k, o.head.heads)};
}

AdditiveMixer::AdditiveMixer(const Options& o, const MixerSite& site, bool norm)
    : options_(o),
      q_(site, "q", o.head.heads, o.head.k, o.width, ConvOf(o)),
      k_(site, "k", o.head.kv_heads, o.head.k, o.width, ConvOf(o)),
      v_(site, "v", o.head.kv_heads, o.head.v, o.width, ConvOf(o)),
      o_proj_(site.scope.Add("o_proj.weight", {o.width, values()}, ProjectionInit(o.width),
                             /*decay=*/true, site.Columns(o.head.heads))) {
  if (!norm) return;
  o_norm_ = &site.scope.Add("o_norm.weight", {o.head.v}, {.kind = Init::Kind::kOnes},
                            /*decay=*/false);
}

AdditiveMixer::Heads AdditiveMixer::Project(Tape& tape, const Var& x_ND,
                                            const RecurrentRun& run) const {
  const auto heads = [&](const Convolved& part, int64_t width, State tail,
                         const Meanwhile& meanwhile = Nothing) {
    return ByHeads(part(tape, x_ND, run, /*silu=*/true, tail, meanwhile), width);
  };
  Heads all;
  const auto values = [&] { all.v = heads(v_, options_.head.v, kValueTail); };
  const auto keys = [&] { all.k = heads(k_, options_.head.k, kKeyTail, values); };
  all.q = heads(q_, options_.head.k, kQueryTail, keys);
  return all;
}

Var AdditiveMixer::SwishGated(Tape& tape, const Var& o_NHV, const Var& gate_NC,
                              const RecurrentRun& run) const {
  return LinearSum(
      tape,
      GatedRmsNorm(tape, FlatHeads(o_NHV), gate_NC, *o_norm_, options_.norm_eps, GateKind::kSwish),
      o_proj_, run.sums());
}

double AdditiveMixer::scale() const { return 1 / std::sqrt(static_cast<double>(options_.head.k)); }

std::vector<StateEntry> AdditiveMixer::StateSpec(int64_t sequences, int64_t /*capacity*/,
                                                 DType dtype) const {
  const HeadWidths& head = options_.head;
  std::vector<StateEntry> spec = {{"state", {sequences, head.heads, head.k, head.v}, dtype}};
  for (const Convolved* part : {&q_, &k_, &v_}) part->AddState(sequences, dtype, &spec);
  return spec;
}

double AdditiveMixer::FlopsPerToken(int64_t /*sequence*/) const {
  const double output = 2 * static_cast<double>(options_.width * values());
  // Write and read: 2 K V each.
  const double scan = 4 * static_cast<double>(options_.head.k * values());
  return q_.flops() + k_.flops() + v_.flops() + scan + output + MoreFlops();
}

ForeignTable AdditiveMixer::CommonForeignNames() {
  ForeignTable table{.options = {{"heads", "num_heads"},
                                 {"kv_heads", "num_kv_heads"},
                                 {"expand_k", "expand_k"},
                                 {"expand_v", "expand_v"},
                                 {"conv", "use_short_conv"},
                                 {"norm_eps", "norm_eps"}}};
  for (const char* name : {"q_proj.weight", "k_proj.weight", "v_proj.weight", "o_proj.weight",
                           "q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight"}) {
    table.params.push_back({name, name});
  }
  return table;
}

}  // namespace lt2
