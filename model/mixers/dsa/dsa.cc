#include "model/mixers/dsa/dsa.h"

#include <algorithm>
#include <cmath>

#include "core/config_range.h"
#include "core/strings.h"
#include "kernels/add_bias.h"
#include "kernels/cache_append.h"
#include "kernels/channel_range.h"
#include "kernels/elementwise.h"
#include "kernels/gpu_limits.h"
#include "kernels/indexer_loss.h"
#include "kernels/layer_norm.h"
#include "kernels/lightning_indexer.h"
#include "kernels/linear.h"
#include "kernels/selected_attention.h"
#include "model/init.h"
#include "model/mixers/common/by_heads.h"
#include "model/mixers/common/fill_cache.h"
#include "model/mixers/common/seen_tokens.h"

namespace lt2 {
namespace {

constexpr int64_t kMostHeads = 4096;  // and channels of one
constexpr int64_t kMostKeys = int64_t{1} << 20;

// Grouped heads of the whole model would be ignored here, so they must be asked for only where
// they mean something.
void CheckOneLatent(const ModelConfig& config, const ConfigTable& table) {
  const bool grouped = config.kv_heads != config.heads && !table.Has("kv_heads");
  int64_t kv_heads = grouped ? config.kv_heads : 1;
  table.Read("kv_heads", &kv_heads);
  if (kv_heads == 1) return;
  table.AddError("kv_heads",
                 StrCat(kv_heads, grouped ? " (of [model])" : "",
                        ": all heads of dsa share one latent, so it must be 1; set model.kv_heads "
                        "= 1, or dsa.kv_heads = 1 where other layers group their heads"));
}

// factor · x, for a factor that nothing learns.
Var Scaled(Tape& tape, const Var& x, double factor) {
  Stream& stream = tape.stream();
  const Tensor y = x.value.Clone();
  Scale(stream, y, factor);
  return tape.Record(
      {x}, y,
      {.name = "scaled",
       .input_grad = [&stream, factor](std::span<const Tensor> dy, std::span<GradSlot> dx) {
         const Tensor scaled = dy[0].Clone();
         Scale(stream, scaled, factor);
         PassGradient(stream, dx[0], scaled);
       }});
}

// Counts the parameters as used where a forward takes no gradient of them: what passes through is
// unchanged, and their gradients stay 0.
Var Untrained(Tape& tape, const Var& y, std::vector<Param*> params) {
  return tape.Record(
      {y}, y.value,
      {.name = "untrained",
       .params = std::move(params),
       .input_grad = [&stream = tape.stream()](std::span<const Tensor> dy, std::span<GradSlot> dx) {
         PassGradient(stream, dx[0], dy[0]);
       }});
}

}  // namespace

DeepSeekSparseAttention::Options DeepSeekSparseAttention::ReadOptions(const ModelConfig& config,
                                                                      const ConfigTable& table) {
  CheckOneLatent(config, table);
  const int64_t half = std::max<int64_t>(1, config.head_dim / 2);
  Options o{.width = config.width,
            .heads = config.heads,
            .value_dim = 4 * config.head_dim,
            .tail_dim = half,
            .top_k = 2048,
            .index_dim = half,
            .index_loss = 1,
            .norm_eps = config.norm_eps,
            .as_released = false};
  ReadInRange(table, "heads", 1, kMostHeads, &o.heads);
  o.index_heads = o.heads;
  ReadInRange(table, "top_k", 1, kMostKeys, &o.top_k);
  ReadInRange(table, "value_dim", 1, kMostHeads, &o.value_dim);
  ReadInRange(table, "tail_dim", 0, kMostHeads, &o.tail_dim);
  ReadInRange(table, "index_heads", 1, kMostHeads, &o.index_heads);
  ReadInRange(table, "index_dim", 1, kMostHeads, &o.index_dim);
  table.Read("as_released", &o.as_released);
  ReadInRange(table, "index_loss", 0.0, 1e6, &o.index_loss);
  if (o.as_released && table.Has("index_loss")) {
    table.AddError("index_loss", "the indexer as_released is not trained; remove one of the two");
  }
  return o;
}

// The indexer, and where it learns its loss, go through all keys in tiles.
std::vector<SizeLimit> DeepSeekSparseAttention::GpuLimits(const Options& o, const RunSizes& run) {
  const bool learns = run.tokens > 0 && !o.as_released;
  const int64_t heads = o.heads / std::min(run.tensor_ranks, o.heads);
  int64_t most_index = kMostHeads, most_latent = gpu::kMostPlainAttention / 2;
  while (gpu::IndexerBytes(o.index_heads, most_index) > gpu::kMostTileBytes) --most_index;
  const auto loss_fits = [&](int64_t latent) {
    return gpu::IndexerLossBytes(o.index_heads, o.index_dim, heads, heads, latent) <=
           gpu::kMostTileBytes;
  };
  while (learns && most_latent > 1 && !loss_fits(most_latent)) --most_latent;
  return {{.key = "index_dim",
           .value = o.index_dim,
           .most = most_index,
           .what = StrCat("channels of ", o.index_heads, " index heads"),
           .instead = StrCat("index_dim = ", most_index, " or less, or a smaller index_heads")},
          {.key = "value_dim",
           .value = o.latent(),
           .most = most_latent,
           .what = StrCat("channels of the latent, value_dim + tail_dim, beside ", heads, " heads"),
           .instead =
               StrCat("value_dim = ", std::max<int64_t>(1, most_latent - o.tail_dim), " or less")},
          {.key = "top_k",
           .value = run.tokens * std::min(o.top_k, run.tokens),
           .most = gpu::kMostListEntries,
           .what = StrCat("keys chosen by ", run.tokens, " tokens of a micro-batch"),
           .instead = StrCat("top_k = ", gpu::kMostListEntries / std::max<int64_t>(1, run.tokens),
                             " or less")}};
}

DeepSeekSparseAttention::DeepSeekSparseAttention(const Options& options, const MixerSite& site)
    : options_(options),
      q_proj_(site.scope.Add("q_proj.weight", {options.heads * options.latent(), options.width},
                             ProjectionInit(options.width), /*decay=*/true,
                             site.Rows(options.heads))),
      kv_proj_(site.scope.Add("kv_proj.weight", {options.latent(), options.width},
                              ProjectionInit(options.width))),
      o_proj_(site.scope.Add("o_proj.weight", {options.width, options.heads * options.value_dim},
                             ProjectionInit(options.width), /*decay=*/true,
                             site.Columns(options.heads))),
      // Decay would change what nothing trains.
      index_q_(site.scope.Add("q_score_proj.weight",
                              {options.index_heads * options.index_dim, options.width},
                              ProjectionInit(options.width), !options.as_released)),
      index_k_(site.scope.Add("k_score_proj.weight", {options.index_dim, options.width},
                              ProjectionInit(options.width), !options.as_released)) {
  if (options.as_released) return;
  index_w_ = &site.scope.Add("w_score_proj.weight", {options.index_heads, options.width},
                             ProjectionInit(options.width));
  index_norm_ = &site.scope.Add("k_score_norm.weight", {options.index_dim},
                                {.kind = Init::Kind::kOnes}, false);
  index_bias_ = &site.scope.Add("k_score_norm.bias", {options.index_dim},
                                {.kind = Init::Kind::kZeros}, false);
}

double DeepSeekSparseAttention::scale() const {
  return 1 / std::sqrt(static_cast<double>(options_.latent()));
}

DeepSeekSparseAttention::Index DeepSeekSparseAttention::IndexOf(Tape& tape, const Var& x_ND) {
  const int64_t tokens = x_ND.value.dim(0), J = options_.index_heads, C = options_.index_dim;
  Index index{.a_NJC = Reshape(Linear(tape, x_ND, index_q_), {tokens, J, C}),
              .b_NC = Linear(tape, x_ND, index_k_)};
  if (options_.as_released) return index;
  index.b_NC =
      AddBias(tape, LayerNorm(tape, index.b_NC, *index_norm_, C, options_.norm_eps), *index_bias_);
  index.w_NJ =
      Scaled(tape, Linear(tape, x_ND, *index_w_), 1 / std::sqrt(static_cast<double>(J * C)));
  return index;
}

MixerOutput DeepSeekSparseAttention::Forward(Tape& tape, const Var& x_ND,
                                             const MixerContext& context) {
  const Documents& documents = context.documents;
  const int64_t N = documents.tokens(), D = options_.latent();
  const bool trains = !options_.as_released && tape.saves();
  Tape silent(tape.stream());
  silent.set_recording(false);
  Tape& index_tape = trains ? tape : silent;
  Index index = IndexOf(index_tape, tape.Input(x_ND.value));
  const Var q = ByHeads(Linear(tape, x_ND, q_proj_), D);
  Var kv = ByHeads(Linear(tape, x_ND, kv_proj_), D);
  if (context.state != nullptr) {
    FillCache(kv.value, documents, 1, (*context.state)[0]);
    FillCache(index.b_NC.value, documents, 1, (*context.state)[1]);
  }
  SeenTokens(tape, context, kAllBefore, {&index.b_NC});
  const Documents& seen = SeenTokens(tape, context, kAllBefore, {&kv});
  const int64_t selected = std::min(options_.top_k, seen.tokens());
  const Tensor keys_NS =
      LightningIndexer(tape, index.a_NJC.value, index.b_NC.value, index.w_NJ.value, selected, seen);
  Tensor lse_NH;
  const Var o =
      SelectedAttention(tape, q, kv, ChannelRange(tape, kv, 0, options_.value_dim),
                        keys_NS.Reshape({N, 1, selected}), {.scale = scale()}, seen, &lse_NH);
  MixerOutput out{.y_ND = LinearSum(tape, FlatHeads(o), o_proj_, context.sums)};
  if (options_.as_released) out.y_ND = Untrained(tape, out.y_ND, {&index_q_, &index_k_});
  if (trains) {
    out.auxiliary_loss = IndexerLoss(tape, index.a_NJC, index.b_NC, index.w_NJ,
                                     {.q_NHD = q.value,
                                      .k_NGD = kv.value,
                                      .lse_NH = lse_NH,
                                      .keys_NS = keys_NS,
                                      .scale = scale(),
                                      .documents = seen},
                                     options_.index_loss, context.heads);
  }
  return out;
}

Tensor DeepSeekSparseAttention::Step(Stream& stream, const Tensor& x_BD, MixerState& state,
                                     const StepContext& context) {
  Tape tape(stream);
  tape.set_recording(false);
  const int64_t B = x_BD.dim(0), H = options_.heads, D = options_.latent();
  const Var x = tape.Input(x_BD);
  const Index index = IndexOf(tape, x);
  const Var q = Linear(tape, x, q_proj_);
  CacheAppend(stream, {.x_BC = Linear(tape, x, kv_proj_).value,
                       .positions_B = context.positions_B,
                       .cache_BSC = state[0]});
  CacheAppend(
      stream,
      {.x_BC = index.b_NC.value, .positions_B = context.positions_B, .cache_BSC = state[1]});
  const int64_t selected = std::min(options_.top_k, state[1].dim(1));
  const Tensor keys_BS = Tensor::Empty({B, selected}, DType::kI32, stream.device);
  LightningIndexerStep(stream, {.q_BHD = index.a_NJC.value,
                                .k_BCD = state[1],
                                .w_BH = index.w_NJ.value,
                                .lengths_B = context.lengths_B,
                                .keys_BS = keys_BS});
  // The whole latent as values: a cache of its first channels would be a second copy.
  const Tensor o_BHD = Tensor::Empty({B, H, D}, x_BD.dtype(), stream.device);
  SelectedAttentionStep(stream, {.q_BHD = q.value.Reshape({B, H, D}),
                                 .k_BCGD = state[0],
                                 .v_BCGE = state[0],
                                 .blocks_BGS = keys_BS.Reshape({B, 1, selected}),
                                 .lengths_B = context.lengths_B,
                                 .o_BHE = o_BHD,
                                 .options = {.scale = scale()}});
  const Var o = ChannelRange(tape, tape.Input(o_BHD), 0, options_.value_dim);
  return Linear(tape, Reshape(o, {B, H * options_.value_dim}), o_proj_).value;
}

std::vector<StateEntry> DeepSeekSparseAttention::StateSpec(int64_t sequences, int64_t capacity,
                                                           DType dtype) const {
  return {{"latent_cache", {sequences, capacity, 1, options_.latent()}, dtype},
          {"index_cache", {sequences, capacity, options_.index_dim}, dtype}};
}

double DeepSeekSparseAttention::FlopsPerToken(int64_t sequence) const {
  const double heads = static_cast<double>(options_.heads);
  const double latent = static_cast<double>(options_.latent());
  const double values = static_cast<double>(options_.value_dim);
  const double J = static_cast<double>(options_.index_heads);
  const double C = static_cast<double>(options_.index_dim);
  const double index_rows = J * C + C + (options_.as_released ? 0 : J);
  const double projections = 2 * static_cast<double>(options_.width) *
                             (heads * latent + latent + heads * values + index_rows);
  const double length = static_cast<double>(sequence);
  const double mean_selected = SelectedPairs(sequence, options_.top_k, 1) / length;
  return projections + 2 * heads * (latent + values) * mean_selected +
         J * (2 * C + 3) * (length + 1) / 2;
}

// LT2's names of parameters; what its code lacks has ours.
ForeignTable DeepSeekSparseAttention::ForeignNames() {
  ForeignTable table{.params = {},
                     .options = {{"heads", "num_heads"},
                                 {"kv_heads", "num_kv_heads"},
                                 {"top_k", "top_k"},
                                 {"value_dim", "value_dim"},
                                 {"tail_dim", "tail_dim"},
                                 {"index_heads", "index_heads"},
                                 {"index_dim", "index_dim"},
                                 {"as_released", "as_released"}}};
  for (const char* name :
       {"q_proj.weight", "kv_proj.weight", "o_proj.weight", "q_score_proj.weight",
        "k_score_proj.weight", "w_score_proj.weight", "k_score_norm.weight", "k_score_norm.bias"}) {
    table.params.push_back({name, name});
  }
  return table;
}

}  // namespace lt2
