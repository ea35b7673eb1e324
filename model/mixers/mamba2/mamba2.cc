#include "model/mixers/mamba2/mamba2.h"

#include "core/config_range.h"
#include "core/strings.h"
#include "kernels/gated_product.h"
#include "kernels/linear.h"
#include "model/init.h"
#include "model/mixers/common/by_heads.h"
#include "model/mixers/common/head_widths.h"
#include "model/mixers/common/scan_limits.h"

namespace lt2 {
namespace {

enum State { kScanState, kTailX, kTailB, kTailC };

}  // namespace

Mamba2::Options Mamba2::ReadOptions(const ModelConfig& config, const ConfigTable& table) {
  Options o{.width = config.width,
            .heads = ReadHeads(table, config.heads),
            .groups = 1,
            .head_dim = 0,
            .state_dim = 64,
            .norm_eps = 1e-5};
  o.head_dim = ReadHeadWidth(table, "expand", 2, o.width, o.heads);
  ReadInRange(table, "groups", 1, kMostHeads, &o.groups);
  ReadInRange(table, "state_dim", 1, kMostHeads, &o.state_dim);
  ReadPositive(table, "norm_eps", &o.norm_eps);
  if (!table.Wrong("groups") && o.heads % o.groups != 0) {
    table.AddError("groups", StrCat(o.groups, " does not divide heads ", o.heads));
  }
  return o;
}

std::vector<SizeLimit> Mamba2::GpuLimits(const Options& o, const RunSizes&) {
  const int64_t row = o.heads * o.head_dim / o.groups, most = gpu::MostNormedRow(row);
  return {ScanKeyLimit("state_dim", o.state_dim, o.heads, /*alone=*/true),
          {.key = "groups",
           .value = row,
           .most = most,
           .what = "channels of a group to be normed",
           .instead = StrCat("groups = ", o.groups * ((row + most - 1) / most),
                             " or more, or a smaller expand")}};
}

Mamba2::Mamba2(const Options& options, const MixerSite& site)
    : options_(options),
      z_proj_(site.scope.Add("z_proj.weight", {inner(), options.width},
                             ProjectionInit(options.width), /*decay=*/true,
                             site.Rows(options.heads))),
      dt_proj_(site.scope.Add("dt_proj.weight", {options.heads, options.width},
                              ProjectionInit(options.width), /*decay=*/true,
                              site.Rows(options.heads))),
      x_(site, "x", options.heads, options.head_dim, options.width, Convolved::Conv::kBiased),
      B_(site, "B", options.groups, options.state_dim, options.width, Convolved::Conv::kBiased),
      C_(site, "C", options.groups, options.state_dim, options.width, Convolved::Conv::kBiased),
      A_log_(site.scope.Add("A_log", {options.heads},
                            {.kind = Init::Kind::kLogUniform, .a = 1, .b = 16},
                            /*decay=*/false, site.Rows(options.heads))),
      D_(site.scope.Add("D", {options.heads}, {.kind = Init::Kind::kOnes}, /*decay=*/false,
                        site.Rows(options.heads))),
      dt_bias_(site.scope.Add("dt_bias", {options.heads},
                              {.kind = Init::Kind::kInverseSoftplusLogUniform, .a = 1e-3, .b = 0.1},
                              /*decay=*/false, site.Rows(options.heads))),
      o_norm_(site.scope.Add("o_norm.weight", {inner()}, {.kind = Init::Kind::kOnes},
                             /*decay=*/false, site.Rows(options.heads))),
      o_proj_(site.scope.Add("o_proj.weight", {options.width, inner()},
                             ProjectionInit(options.width), /*decay=*/true,
                             site.Columns(options.heads))) {}

Var Mamba2::Mix(Tape& tape, const Var& x_ND, const RecurrentRun& run) {
  const auto convolved = [&](const Convolved& part, int64_t channels, State tail,
                             const Meanwhile& meanwhile = Nothing) {
    return ByHeads(part(tape, x_ND, run, /*silu=*/true, tail, meanwhile), channels);
  };
  SsdInputs in;
  Var z;
  const auto project_C = [&] { in.C_NGK = convolved(C_, options_.state_dim, kTailC); };
  const auto project_others = [&] {
    in.a_NH = Linear(tape, x_ND, dt_proj_);
    in.B_NGK = convolved(B_, options_.state_dim, kTailB, project_C);
  };
  in.x_NHP = convolved(x_, options_.head_dim, kTailX, project_others);
  const Var o = run.Scan(tape, in, SsdParams{.A_log_H = A_log_, .D_H = D_, .dt_bias_H = dt_bias_},
                         kScanState, [&] { z = Linear(tape, x_ND, z_proj_); });
  const Var gated = SwiGlu(tape, z, FlatHeads(o));
  const Var normed = run.Normed(tape, gated, o_norm_, options_.norm_eps, options_.groups);
  return LinearSum(tape, normed, o_proj_, run.sums());
}

std::vector<StateEntry> Mamba2::StateSpec(int64_t sequences, int64_t /*capacity*/,
                                          DType dtype) const {
  std::vector<StateEntry> spec = {
      {"state", {sequences, options_.heads, options_.state_dim, options_.head_dim}, dtype}};
  for (const Convolved* part : {&x_, &B_, &C_}) part->AddState(sequences, dtype, &spec);
  return spec;
}

double Mamba2::FlopsPerToken(int64_t /*sequence*/) const {
  const double width = static_cast<double>(options_.width);
  const double inner = static_cast<double>(this->inner());
  const double more = 2 * width * (2 * inner + static_cast<double>(options_.heads));  // z, o, dt
  return x_.flops() + B_.flops() + C_.flops() + more +
         4 * static_cast<double>(options_.state_dim) * inner + 2 * inner;
}

ForeignTable Mamba2::ForeignNames() {
  return {.params = {{"z_proj.weight", "in_proj.weight"},
                     {"x_proj.weight", "in_proj.weight"},
                     {"B_proj.weight", "in_proj.weight"},
                     {"C_proj.weight", "in_proj.weight"},
                     {"dt_proj.weight", "in_proj.weight"},
                     {"x_conv1d.weight", "conv1d.weight"},
                     {"B_conv1d.weight", "conv1d.weight"},
                     {"C_conv1d.weight", "conv1d.weight"},
                     {"x_conv1d.bias", "conv1d.bias"},
                     {"B_conv1d.bias", "conv1d.bias"},
                     {"C_conv1d.bias", "conv1d.bias"},
                     {"A_log", "A_log"},
                     {"D", "D"},
                     {"dt_bias", "dt_bias"},
                     {"o_norm.weight", "norm.weight"},
                     {"o_proj.weight", "out_proj.weight"}},
          .options = {{"heads", "num_heads"},
                      {"expand", "expand"},
                      {"state_dim", "state_size", 128},
                      {"groups", "n_groups"},
                      {"norm_eps", "norm_eps"}}};
}

}  // namespace lt2
