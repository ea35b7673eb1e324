#include "model/mixers/common/softmax_attention.h"

#include <algorithm>
#include <cmath>

#include "core/strings.h"
#include "kernels/attention_step.h"
#include "kernels/cache_append.h"
#include "kernels/first_token_mass.h"
#include "kernels/gated_product.h"
#include "kernels/gpu_limits.h"
#include "kernels/linear.h"
#include "kernels/rms_norm.h"
#include "model/init.h"
#include "model/mixers/common/by_heads.h"
#include "model/mixers/common/fill_cache.h"
#include "model/mixers/common/seen_tokens.h"
#include "parallel/row_attention.h"

namespace lt2 {
namespace {

// One window for all loops, or a list of one per loop.
std::vector<int64_t> ReadWindows(const ConfigTable& table, int64_t loops, int64_t fallback) {
  std::vector<int64_t> windows = {fallback};
  if (table.IsList("window")) {
    table.Read("window", &windows);
    if (static_cast<int64_t>(windows.size()) != loops) {
      table.AddError("window", StrCat("lists ", windows.size(), " windows for ", loops,
                                      " loops; give one for each, or a single integer"));
    }
  } else {
    table.Read("window", &windows[0]);
  }
  for (int64_t window : windows) {
    if (window < 0) table.AddError("window", StrCat(window, " is negative; 0 sees all tokens"));
  }
  return windows;
}

// Keys that a query sees, on average over a sequence.
double MeanVisible(int64_t window, int64_t sequence) {
  const double length = static_cast<double>(sequence);
  if (window == 0 || window >= sequence) return (length + 1) / 2;
  const double w = static_cast<double>(window);
  return (w * (w + 1) / 2 + (length - w) * w) / length;
}

}  // namespace

SoftmaxAttention::Options SoftmaxAttention::Read(const ModelConfig& config,
                                                 const ConfigTable& table, int64_t window) {
  Options options{
      .width = config.width,
      .heads = config.heads,
      .kv_heads = config.kv_heads,
      .head_dim = config.head_dim,
      .gate = config.attention_gate,
      .qk_norm = false,
      .norm_eps = config.norm_eps,
      .windows = ReadWindows(table, config.loops, window),
      .rope = {.theta = config.rope_theta,
               .style = config.rope_interleaved ? RopeStyle::kInterleaved : RopeStyle::kHalf}};
  table.Read("qk_norm", &options.qk_norm);
  return options;
}

std::vector<HeadCount> SoftmaxAttention::HeadCounts(const Options& options) {
  return {{"heads", options.heads}, {"kv_heads", options.kv_heads, /*shared=*/true}};
}

std::vector<SizeLimit> SoftmaxAttention::GpuLimits(const Options& options, const RunSizes&) {
  const int64_t most = gpu::kMostPlainAttention / 2;
  return {{.key = "head_dim",
           .value = options.head_dim,
           .most = most,
           .what = "channels of a head",
           .instead = StrCat("head_dim = ", most, " or less, or more heads,"),
           .of_model = true}};
}

SoftmaxAttention::SoftmaxAttention(const Options& options, const MixerSite& site)
    : options_(options),
      q_proj_(site.scope.Add("q_proj.weight", {options.heads * options.head_dim, options.width},
                             ProjectionInit(options.width), /*decay=*/true,
                             site.Rows(options.heads))),
      k_proj_(site.scope.Add("k_proj.weight", {options.kv_heads * options.head_dim, options.width},
                             ProjectionInit(options.width), /*decay=*/true,
                             site.Rows(options.kv_heads))),
      v_proj_(site.scope.Add("v_proj.weight", {options.kv_heads * options.head_dim, options.width},
                             ProjectionInit(options.width), /*decay=*/true,
                             site.Rows(options.kv_heads))),
      o_proj_(site.scope.Add("o_proj.weight", {options.width, options.heads * options.head_dim},
                             ProjectionInit(options.width), /*decay=*/true,
                             site.Columns(options.heads))) {
  if (options.gate) {
    gate_proj_ =
        &site.scope.Add("gate_proj.weight", {options.heads * options.head_dim, options.width},
                        {.kind = Init::Kind::kZeros}, /*decay=*/true, site.Rows(options.heads));
  }
  if (options.qk_norm) {
    q_norm_ =
        &site.scope.Add("q_norm.weight", {options.head_dim}, {.kind = Init::Kind::kOnes}, false);
    k_norm_ =
        &site.scope.Add("k_norm.weight", {options.head_dim}, {.kind = Init::Kind::kOnes}, false);
  }
}

AttentionOptions SoftmaxAttention::OptionsOfLoop(int64_t loop) const {
  const std::vector<int64_t>& windows = options_.windows;
  return {.scale = 1 / std::sqrt(static_cast<double>(options_.head_dim)),
          .window = windows.size() == 1 ? windows[0] : windows.at(loop)};
}

Var SoftmaxAttention::RotatedHeads(Tape& tape, const Var& x_NC, Param* norm,
                                   const Tensor& positions_N) const {
  Var x = ByHeads(x_NC, options_.head_dim);
  if (norm != nullptr) x = RmsNorm(tape, x, *norm, options_.norm_eps);
  return Rope(tape, x, positions_N, options_.rope);
}

MixerOutput SoftmaxAttention::Forward(Tape& tape, const Var& x_ND, const MixerContext& context) {
  const Documents& documents = context.documents;
  const Tensor& positions = documents.whole_positions();
  const Var q = RotatedHeads(tape, Linear(tape, x_ND, q_proj_), q_norm_, positions);
  Var k = RotatedHeads(tape, Linear(tape, x_ND, k_proj_), k_norm_, positions);
  Var v = ByHeads(Linear(tape, x_ND, v_proj_), options_.head_dim);
  if (context.state != nullptr) {
    FillCache(k.value, documents, 1, (*context.state)[0]);
    FillCache(v.value, documents, 1, (*context.state)[1]);
  }

  const AttentionOptions attention = OptionsOfLoop(context.loop);
  ContextShard* const shard = context.shard;
  Var o;
  if (shard != nullptr && attention.window == 0 && !shard->cp().in_turn()) {
    o = RowAttention(tape, q, k, v, attention, *shard, context.first_token_mass);
  } else {
    const int64_t reach = attention.window == 0 ? kAllBefore : attention.window - 1;
    const Documents& seen = SeenTokens(tape, context, reach, {&k, &v});
    Tensor lse_NH;
    o = Attention(tape, q, k, v, attention, seen, &lse_NH);
    if (context.first_token_mass.defined()) {
      tape.Kept([&] {  // counted once, also where all this is computed again
        FirstTokenMass(tape.stream(), {.q_NHD = q.value,
                                       .k_NGD = k.value,
                                       .lse_NH = lse_NH,
                                       .mass = context.first_token_mass,
                                       .options = attention,
                                       .documents = seen});
        return std::vector<Tensor>();
      });
    }
  }
  o = FlatHeads(o);
  if (gate_proj_ != nullptr) o = SigmoidGate(tape, o, Linear(tape, x_ND, *gate_proj_));
  return {.y_ND = LinearSum(tape, o, o_proj_, context.sums)};
}

Tensor SoftmaxAttention::Step(Stream& stream, const Tensor& x_BD, MixerState& state,
                              const StepContext& context) {
  Tape tape(stream);
  tape.set_recording(false);
  const Var x = tape.Input(x_BD);
  const Var q = RotatedHeads(tape, Linear(tape, x, q_proj_), q_norm_, context.positions_B);
  const Var k = RotatedHeads(tape, Linear(tape, x, k_proj_), k_norm_, context.positions_B);
  const Var v = Linear(tape, x, v_proj_);
  for (int i = 0; i < 2; ++i) {
    CacheAppend(stream, {.x_BC = i == 0 ? k.value : v.value,
                         .positions_B = context.positions_B,
                         .cache_BSC = state[i]});
  }
  const Tensor o_BHD = Tensor::Empty(q.shape(), x_BD.dtype(), x_BD.device());
  AttentionStep(stream, {.q_BHD = q.value,
                         .k_BSGD = state[0],
                         .v_BSGE = state[1],
                         .lengths_B = context.lengths_B,
                         .o_BHE = o_BHD,
                         .options = OptionsOfLoop(context.loop)});
  Var o = FlatHeads(tape.Input(o_BHD));
  if (gate_proj_ != nullptr) o = SigmoidGate(tape, o, Linear(tape, x, *gate_proj_));
  return Linear(tape, o, o_proj_).value;
}

std::vector<StateEntry> SoftmaxAttention::StateSpec(int64_t sequences, int64_t capacity,
                                                    DType dtype) const {
  const Shape cache = {sequences, capacity, options_.kv_heads, options_.head_dim};
  return {{"k_cache", cache, dtype}, {"v_cache", cache, dtype}};
}

SequenceStrategy SoftmaxAttention::strategy() const {
  const std::vector<int64_t>& windows = options_.windows;
  const bool all = std::find(windows.begin(), windows.end(), 0) != windows.end();
  return all ? SequenceStrategy::kGather : SequenceStrategy::kHalo;
}

double SoftmaxAttention::FlopsPerToken(int64_t sequence) const {
  const double inner = static_cast<double>(options_.heads * options_.head_dim);
  const double kv = static_cast<double>(options_.kv_heads * options_.head_dim);
  const double width = static_cast<double>(options_.width);
  const double projections = 2 * width * ((options_.gate ? 3 : 2) * inner + 2 * kv);
  double visible = 0;  // the mean over loops
  for (int64_t window : options_.windows) visible += MeanVisible(window, sequence);
  visible /= static_cast<double>(options_.windows.size());
  return projections + 4 * inner * visible;
}

ForeignTable SoftmaxAttention::ForeignNames() {
  return {.params = {{"q_proj.weight", "q_proj.weight"},
                     {"k_proj.weight", "k_proj.weight"},
                     {"v_proj.weight", "v_proj.weight"},
                     {"o_proj.weight", "o_proj.weight"},
                     {"gate_proj.weight", "gate_proj.weight"},
                     {"q_norm.weight", "q_norm.weight"},
                     {"k_norm.weight", "k_norm.weight"}},
          .options = {{"qk_norm", "qk_norm"}, {"window", "window_size"}}};
}

}  // namespace lt2
