#include "model/mixers/nsa/nsa.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "core/config_range.h"
#include "core/strings.h"
#include "kernels/attention_step.h"
#include "kernels/block_mean.h"
#include "kernels/branch_gate.h"
#include "kernels/cache_append.h"
#include "kernels/compressed_attention.h"
#include "kernels/gpu_limits.h"
#include "kernels/linear.h"
#include "kernels/nsa_attention.h"
#include "kernels/select_blocks.h"
#include "kernels/selected_attention.h"
#include "model/init.h"
#include "model/mixers/common/by_heads.h"
#include "model/mixers/common/fill_cache.h"
#include "model/mixers/common/seen_tokens.h"

namespace lt2 {
namespace {

constexpr int64_t kLeastGroup = 16;  // query heads that read one key/value head

// Entries of the state.
enum Entry { kKeys, kValues, kMeanKeys, kMeanValues };

}  // namespace

NativeSparseAttention::Options NativeSparseAttention::ReadOptions(const ModelConfig& config,
                                                                  const ConfigTable& table) {
  const bool grouped = config.kv_heads != config.heads;
  Options options{
      .width = config.width,
      .heads = grouped ? config.heads : std::max(config.heads, kLeastGroup),
      .kv_heads = 0,
      .head_dim = 0,
      .block_size = 64,
      .block_counts = 16,
      .window = 512,
      .rope = {.theta = config.rope_theta,
               .style = config.rope_interleaved ? RopeStyle::kInterleaved : RopeStyle::kHalf}};
  ReadInRange(table, "block_size", 1, 1 << 16, &options.block_size);
  // The first block, the previous and the query's own are always among them.
  ReadInRange(table, "block_counts", 3, 1 << 16, &options.block_counts);
  ReadInRange(table, "window", 1, int64_t{1} << 30, &options.window);
  ReadInRange(table, "heads", 1, 4096, &options.heads);
  if (table.Wrong("heads")) return options;

  options.kv_heads = grouped ? config.kv_heads : std::max<int64_t>(1, options.heads / kLeastGroup);
  table.Read("kv_heads", &options.kv_heads);
  const int64_t group = options.kv_heads > 0 ? options.heads / options.kv_heads : 0;
  if (options.kv_heads <= 0 || options.heads % options.kv_heads != 0 || group < kLeastGroup ||
      !std::has_single_bit(static_cast<uint64_t>(group))) {
    table.AddError(
        table.Has("kv_heads") || !table.Has("heads") ? "kv_heads" : "heads",
        StrCat("nsa selects blocks for groups of query heads: heads / kv_heads must be a "
               "power of two, ",
               kLeastGroup, " or more, and is ", options.heads, " / ", options.kv_heads,
               "; set heads and kv_heads of [model.nsa]"));
  }
  const int64_t inner = config.heads * config.head_dim;
  options.head_dim = inner / options.heads;
  table.Read("head_dim", &options.head_dim);
  const bool divides = table.Has("head_dim") || inner % options.heads == 0;
  if (!divides || options.head_dim <= 0 || options.head_dim % 2 != 0 || options.head_dim > 4096) {
    table.AddError("head_dim",
                   StrCat("must be even (rotary pairs), from 2 to 4096; the model's heads are ",
                          inner, " wide in all, for ", options.heads, " heads"));
  }
  return options;
}

std::vector<HeadCount> NativeSparseAttention::HeadCounts(const Options& options) {
  return {{"heads", options.heads}, {"kv_heads", options.kv_heads}};
}

// Its blocks are chosen by the heads of a group at once, which go through the mean keys in tiles.
std::vector<SizeLimit> NativeSparseAttention::GpuLimits(const Options& o, const RunSizes& run) {
  int64_t most = gpu::kMostPlainAttention / 2;
  while (gpu::SelectBlocksBytes(o.heads / o.kv_heads, most) > gpu::kMostTileBytes) --most;
  const int64_t lists = run.tokens * o.kv_heads / std::min(run.tensor_ranks, o.kv_heads);
  return {{.key = "head_dim",
           .value = o.head_dim,
           .most = most,
           .what = StrCat("channels of a head, ", o.heads / o.kv_heads, " in a group"),
           .instead = StrCat("head_dim = ", most, " or less")},
          {.key = "block_counts",
           .value = lists * o.block_counts,
           .most = gpu::kMostListEntries,
           .what = StrCat("blocks chosen by ", run.tokens, " tokens of a micro-batch"),
           .instead = StrCat("block_counts = ", gpu::kMostListEntries / std::max<int64_t>(1, lists),
                             " or less")}};
}

NativeSparseAttention::NativeSparseAttention(const Options& options, const MixerSite& site)
    : options_(options),
      scale_(1 / std::sqrt(static_cast<double>(options.head_dim))),
      q_proj_(site.scope.Add("q_proj.weight", {options.heads * options.head_dim, options.width},
                             ProjectionInit(options.width), /*decay=*/true,
                             site.Rows(options.heads))),
      k_proj_(site.scope.Add("k_proj.weight", {options.kv_heads * options.head_dim, options.width},
                             ProjectionInit(options.width), /*decay=*/true,
                             site.Rows(options.kv_heads))),
      v_proj_(site.scope.Add("v_proj.weight", {options.kv_heads * options.head_dim, options.width},
                             ProjectionInit(options.width), /*decay=*/true,
                             site.Rows(options.kv_heads))),
      g_proj_(site.scope.Add("g_proj.weight", {kBranches * options.heads, options.width},
                             ProjectionInit(options.width), /*decay=*/true,
                             site.Rows(options.heads))),
      o_proj_(site.scope.Add("o_proj.weight", {options.width, options.heads * options.head_dim},
                             ProjectionInit(options.width), /*decay=*/true,
                             site.Columns(options.heads))) {}

NativeSparseAttention::Heads NativeSparseAttention::Project(Tape& tape, const Var& x_ND,
                                                            const Tensor& positions_N) const {
  const auto heads_of = [&](Param& proj) {
    return ByHeads(Linear(tape, x_ND, proj), options_.head_dim);
  };
  return {.q_NHD = Rope(tape, heads_of(q_proj_), positions_N, options_.rope),
          .k_NGD = Rope(tape, heads_of(k_proj_), positions_N, options_.rope),
          .v_NGD = heads_of(v_proj_)};
}

Var NativeSparseAttention::Gates(Tape& tape, const Var& x_ND) const {
  return ByHeads(Linear(tape, x_ND, g_proj_), kBranches);
}

MixerOutput NativeSparseAttention::Forward(Tape& tape, const Var& x_ND,
                                           const MixerContext& context) {
  const Documents& documents = context.documents;
  const int64_t block = options_.block_size;
  auto [q, k, v] = Project(tape, x_ND, documents.whole_positions());
  if (context.state != nullptr) {
    FillCache(k.value, documents, 1, (*context.state)[kKeys]);
    FillCache(v.value, documents, 1, (*context.state)[kValues]);
  }
  const Documents& seen = SeenTokens(tape, context, kAllBefore, {&k, &v});
  const NsaOutput out = NsaAttention(tape, q, k, v, Gates(tape, x_ND),
                                     {.scale = scale_,
                                      .block = block,
                                      .selected = options_.block_counts,
                                      .window = options_.window},
                                     seen);
  if (context.state != nullptr) {
    FillCache(out.k_CGD, documents, block, (*context.state)[kMeanKeys]);
    FillCache(out.v_CGE, documents, block, (*context.state)[kMeanValues]);
  }
  return {.y_ND = LinearSum(tape, FlatHeads(out.o_NHE), o_proj_, context.sums)};
}

Tensor NativeSparseAttention::Step(Stream& stream, const Tensor& x_BD, MixerState& state,
                                   const StepContext& context) {
  Tape tape(stream);
  tape.set_recording(false);
  const int64_t batch = x_BD.dim(0), block = options_.block_size;
  const Var x = tape.Input(x_BD);
  const auto [q, k, v] = Project(tape, x, context.positions_B);
  for (const auto& [value, cache, mean] :
       {std::tuple(k.value, kKeys, kMeanKeys), std::tuple(v.value, kValues, kMeanValues)}) {
    CacheAppend(stream,
                {.x_BC = value, .positions_B = context.positions_B, .cache_BSC = state[cache]});
    BlockMeanStep(stream, {.x_BSC = state[cache],
                           .mean_BRC = state[mean],
                           .lengths_B = context.lengths_B,
                           .block = block});
  }
  const auto like_q = [&] { return Tensor::Empty(q.shape(), x_BD.dtype(), x_BD.device()); };
  const Tensor compressed = like_q(), selected = like_q(), window = like_q();
  CompressedAttentionStep(stream, {.q_BHD = q.value,
                                   .k_BRGD = state[kMeanKeys],
                                   .v_BRGE = state[kMeanValues],
                                   .lengths_B = context.lengths_B,
                                   .o_BHE = compressed,
                                   .options = {.scale = scale_, .block = block}});
  const Tensor blocks =
      Tensor::Empty({batch, options_.kv_heads, options_.block_counts}, DType::kI32, x_BD.device());
  SelectBlocksStep(
      stream, {.q_BHD = q.value,
               .k_BRGD = state[kMeanKeys],
               .lengths_B = context.lengths_B,
               .blocks_BGS = blocks,
               .options = {.scale = scale_, .block = block, .selected = options_.block_counts}});
  SelectedAttentionStep(stream, {.q_BHD = q.value,
                                 .k_BCGD = state[kKeys],
                                 .v_BCGE = state[kValues],
                                 .blocks_BGS = blocks,
                                 .lengths_B = context.lengths_B,
                                 .o_BHE = selected,
                                 .options = {.scale = scale_, .block = block}});
  AttentionStep(stream, {.q_BHD = q.value,
                         .k_BSGD = state[kKeys],
                         .v_BSGE = state[kValues],
                         .lengths_B = context.lengths_B,
                         .o_BHE = window,
                         .options = {.scale = scale_, .window = options_.window}});
  const Var o = BranchGate(tape, {tape.Input(compressed), tape.Input(selected), tape.Input(window)},
                           Gates(tape, x));
  return Linear(tape, FlatHeads(o), o_proj_).value;
}

std::vector<StateEntry> NativeSparseAttention::StateSpec(int64_t sequences, int64_t capacity,
                                                         DType dtype) const {
  const Shape cache = {sequences, capacity, options_.kv_heads, options_.head_dim};
  Shape means = cache;
  means[1] = BlockRows(capacity, options_.block_size);
  return {{"k_cache", cache, dtype},
          {"v_cache", cache, dtype},
          {"k_mean_cache", means, dtype},
          {"v_mean_cache", means, dtype}};
}

// Without the scores that selection computes again.
double NativeSparseAttention::FlopsPerToken(int64_t sequence) const {
  const double width = static_cast<double>(options_.width);
  const double heads = static_cast<double>(options_.heads);
  const double inner = heads * static_cast<double>(options_.head_dim);
  const double kv = static_cast<double>(options_.kv_heads * options_.head_dim);
  const double pairs = CompressedPairs(sequence, options_.block_size) +
                       SelectedPairs(sequence, options_.block_counts, options_.block_size) +
                       SelectedPairs(sequence, options_.window, 1);
  return 2 * width * (2 * inner + 2 * kv + kBranches * heads) +
         4 * inner * pairs / static_cast<double>(sequence);
}

// What is not given over there is that constructor's default.
ForeignTable NativeSparseAttention::ForeignNames() {
  ForeignTable table{.params = {},
                     .options = {{"heads", "num_heads", 64},
                                 {"kv_heads", "num_kv_heads", 4},
                                 {"head_dim", "head_dim", 64},
                                 {"block_size", "block_size"},
                                 {"block_counts", "block_counts"},
                                 {"window", "window_size"}}};
  for (const char* name :
       {"q_proj.weight", "k_proj.weight", "v_proj.weight", "g_proj.weight", "o_proj.weight"}) {
    table.params.push_back({name, name});
  }
  return table;
}

}  // namespace lt2
