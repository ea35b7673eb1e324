#include "parallel/optimizer.h"

#include <algorithm>
#include <cmath>

#include "core/log.h"
#include "core/strings.h"
#include "kernels/elementwise.h"
#include "kernels/squared_norm.h"
#include "kernels/step_decision.h"

namespace lt2 {
namespace {

const char* TextOf(SkipReason reason) {
  switch (reason) {
    case SkipReason::kNone:
      return "";
    case SkipReason::kNotFinite:
      return "non-finite gradient";
    case SkipReason::kNoTokens:
      return "no token counts";
    case SkipReason::kSpike:
      return "norm spike";
  }
  return "?";
}

bool HasOthers(const Bucket& bucket) { return bucket.shard_counts.size() > 1; }

}  // namespace

Optimizer::Optimizer(std::span<Param* const> params, const LayoutTable& layout,
                     const RankGroups& groups, const Reducer& gradients,
                     std::unique_ptr<UpdateRule> rule, const OptimizerConfig& config)
    : params_(params.begin(), params.end()),
      layout_(layout),
      groups_(groups),
      rule_(std::move(rule)),
      config_(config),
      gathers_any_(layout.zero > 0 && std::ranges::any_of(layout.buckets, HasOthers)),
      gathers_(layout.buckets.size()),
      awaited_(layout.buckets.size()) {
  CHECK_EQ(params_.size(), layout.entries.size());
  hyper_ = Tensor::Zeros({kHyperSize}, DType::kF64, params_[0]->master.device());
  for (const Bucket& bucket : layout.buckets) {
    const int rank = HoldersOf(bucket, groups).rank();
    const Tensor like = params_[bucket.params[0]]->master;
    Tensor& buffer =
        values_.emplace_back(Tensor::Zeros({bucket.elements}, like.dtype(), like.device()));
    std::vector<Piece>& pieces = pieces_.emplace_back();
    for (int p : bucket.params) {
      Param& param = *params_[p];
      const LayoutEntry& entry = layout.entries[p];
      const Tensor view = buffer.Flat(entry.offset, param.master.size());
      view.CopyFrom(param.master);
      param.BindMaster(view);
      for (const OwnedPiece& piece : entry.owners) {
        if (piece.rank != rank) continue;
        if (bucket.counted) {
          unique_params_.push_back(p);
          unique_gradients_.push_back(gradients.Gradient(p, piece.box, piece.offset));
        }
        if (layout.zero > 0) pieces.push_back(MakePiece(p, piece.box, piece.offset, gradients));
      }
      if (layout.zero == 0) pieces.push_back(MakePiece(p, entry.held, 0, gradients));
    }
  }
  const int64_t unique = static_cast<int64_t>(unique_gradients_.size());
  squares_ = Tensor::Zeros({unique}, DType::kF64, hyper_.device());
  step_counters_ = Tensor::Zeros({kStepCounters}, DType::kF64, hyper_.device());
}

Optimizer::~Optimizer() {
  for (const Pending& gather : gathers_) gather.Wait();
}

Optimizer::Piece Optimizer::MakePiece(int param, const Box& box, int64_t offset,
                                      const Reducer& gradients) const {
  CHECK(!rule_->NeedsWholeParameters() || box.extent == params_[param]->spec.shape)
      << params_[param]->spec.name << ": this update rule needs LayoutOptions::whole_parameters "
      << "and ranks that hold all of a parameter";
  const Param& p = *params_[param];
  Piece piece{.param = param,
              .box = box,
              .value = p.master.Flat(offset, box.size()).Reshape(box.extent),
              .gradient = gradients.Gradient(param, box, offset),
              .rounded = {},
              .states = {}};
  if (p.value.dtype() == DType::kBF16) {
    piece.rounded = p.value.Flat(offset, box.size()).Reshape(box.extent);
  }
  for (size_t s = 0; s < rule_->StateNames().size(); ++s) {
    piece.states.push_back(Tensor::Zeros(box.extent, p.master.dtype(), p.master.device()));
  }
  return piece;
}

std::vector<UpdatePiece> Optimizer::UpdatesOf(const std::vector<Piece>& pieces) const {
  std::vector<UpdatePiece> updates;
  for (const Piece& piece : pieces) {
    const ParamSpec& spec = params_[piece.param]->spec;
    updates.push_back({.spec = &spec,
                       .box = &piece.box,
                       .value = piece.value,
                       .gradient = piece.gradient,
                       .rounded = piece.rounded,
                       .states = piece.states,
                       .decay = spec.decay || config_.decay_all});
  }
  return updates;
}

StepReport Optimizer::Step(Stream& stream, const StepInput& input) {
  Prepare(input);
  Update(stream);
  return Report();
}

// Tensors for as many numbers as the input has.
void Optimizer::MakeScalars(const StepInput& input) {
  sums_ = static_cast<int64_t>(input.sums.size());
  maxes_ = static_cast<int64_t>(input.maxes.size());
  const Device device = hyper_.device();
  const int64_t losses = input.losses.defined() ? input.losses.size() : 0;
  const int64_t others = losses + sums_ + maxes_;
  if (report_.defined() && report_.size() == kReportOthers + others &&
      inputs_.tensor().size() == kInputScalars + sums_ + maxes_) {
    return;
  }
  inputs_ = Upload({kInputScalars + sums_ + maxes_}, DType::kF64, device);
  scalars_ = Tensor::Zeros({groups_.world->size(), kScalarOthers + others}, DType::kF64, device);
  report_ = Tensor::Zeros({kReportOthers + others}, DType::kF64, device);
  if (losses > 0) no_losses_ = Tensor::Zeros(input.losses.shape(), DType::kF64, device);
}

void Optimizer::Prepare(const StepInput& input) {
  WaitForValues();
  MakeScalars(input);
  const bool counts = groups_.tp->rank() == 0;
  losses_ = counts ? input.losses : no_losses_;
  tokens_at_ = input.tokens_at;
  if (hyper_.on_meta()) return;
  double* to = inputs_.Next<double>();
  to[kInputLr] = input.lr;
  to[kInputTokens] = counts ? input.counted_tokens : 0;
  to[kInputBadLosses] = counts ? input.bad_losses : 0;
  to = std::transform(input.sums.begin(), input.sums.end(), to + kInputScalars,
                      [counts](double sum) { return counts ? sum : 0; });
  std::ranges::copy(input.maxes, to);
  inputs_.Send();
}

void Optimizer::Update(Stream& stream, bool gather) {
  Communicator& world = *groups_.world;
  SquaredNorms(stream, {.x = unique_gradients_, .sums = squares_});
  StepScalars(stream, {.squares = squares_,
                       .losses = losses_,
                       .tokens_at = tokens_at_,
                       .inputs = inputs_.tensor(),
                       .scalars = scalars_.Rows(world.rank(), world.rank() + 1)});
  world.AllGather(scalars_, std::vector<int64_t>(world.size(), scalars_.dim(1)), "step_scalars");
  StepDecision(stream, {.scalars = scalars_,
                        .maxes = maxes_,
                        .inputs = inputs_.tensor(),
                        .clip = config_.clip,
                        .spike_z = config_.spike_z,
                        .counters = step_counters_,
                        .hyper = hyper_,
                        .report = report_});
  UpdateValues(stream, gather);
}

// What the next forward reads first is gathered first; where nothing is, one call updates all.
void Optimizer::UpdateValues(Stream& stream, bool gather) {
  if (!Gathers() || !gather) {
    gathered_ = !Gathers();
    std::vector<UpdatePiece> all;
    for (const std::vector<Piece>& pieces : pieces_) {
      const std::vector<UpdatePiece> updates = UpdatesOf(pieces);
      all.insert(all.end(), updates.begin(), updates.end());
    }
    return rule_->Update(stream, hyper_, all);
  }
  for (int bucket = static_cast<int>(pieces_.size()) - 1; bucket >= 0; --bucket) {
    rule_->Update(stream, hyper_, UpdatesOf(pieces_[bucket]));
    GatherBucket(bucket);
  }
}

void Optimizer::GatherBucket(int bucket) {
  const Bucket& cut = layout_.buckets[bucket];
  gathers_[bucket] =
      HoldersOf(cut, groups_).AllGatherAsync(values_[bucket], cut.shard_counts, "gather_values");
  awaited_[bucket] = true;
}

void Optimizer::GatherValues(bool again) {
  if (!Gathers() || (std::exchange(gathered_, true) && !again)) return;
  for (int bucket = static_cast<int>(pieces_.size()) - 1; bucket >= 0; --bucket) {
    GatherBucket(bucket);
  }
}

StepReport Optimizer::Report() {
  const std::vector<double> values =
      report_.on_meta() ? std::vector<double>(report_.size(), 0.0) : report_.ToDoubles();
  const double* counters = values.data() + kReportCounters;
  counters_ = {.skipped = static_cast<int64_t>(counters[kCounterSkipped]),
               .skipped_in_row = static_cast<int64_t>(counters[kCounterSkippedInRow]),
               .norms = static_cast<int64_t>(counters[kCounterNorms]),
               .norm_mean = counters[kCounterMean],
               .norm_variance = counters[kCounterVariance]};
  StepReport report{.grad_norm = values[kReportNorm],
                    .clip_factor = values[kReportClip],
                    .counted_tokens = values[kReportTokens],
                    .nonfinite = values[kReportBad],
                    .skipped = TextOf(static_cast<SkipReason>(values[kReportSkipped])),
                    .losses = {},
                    .sums = {},
                    .maxes = {}};
  const auto maxes = values.end() - maxes_, sums = maxes - sums_;
  report.losses.assign(values.begin() + kReportOthers, sums);
  report.sums.assign(sums, maxes);
  report.maxes.assign(maxes, values.end());
  if (report.nonfinite > 0) WarnOfBadGradients();
  return report;
}

void Optimizer::WarnOfBadGradients() const {
  const std::vector<double> squares = squares_.ToDoubles();
  const auto bad = std::ranges::find_if(squares, [](double x) { return !std::isfinite(x); });
  if (bad == squares.end()) return;
  const ParamSpec& spec = params_[unique_params_[bad - squares.begin()]]->spec;
  LogWarn(StrCat("the gradient of ", spec.name, " is not finite"));
}

void Optimizer::set_counters(const OptimizerCounters& counters) {
  counters_ = counters;
  std::vector<double> values(kStepCounters);
  values[kCounterSkipped] = static_cast<double>(counters.skipped);
  values[kCounterSkippedInRow] = static_cast<double>(counters.skipped_in_row);
  values[kCounterNorms] = static_cast<double>(counters.norms);
  values[kCounterMean] = counters.norm_mean;
  values[kCounterVariance] = counters.norm_variance;
  step_counters_.CopyFrom(
      Tensor::FromHost(values, {kStepCounters}, DType::kF64, step_counters_.device()));
}

void Optimizer::WaitForBucket(int bucket) {
  if (!awaited_[bucket]) return;
  awaited_[bucket] = false;
  std::exchange(gathers_[bucket], {}).Wait();
  for (int p : layout_.buckets[bucket].params) Round(*params_[p]);
}

void Optimizer::WaitForValues(int end) {
  end = std::min(end, static_cast<int>(params_.size()));
  for (int p = 0; p < end; ++p) WaitForBucket(layout_.entries[p].bucket);
}

void Optimizer::WaitForValues() {
  GatherValues();
  WaitForValues(static_cast<int>(params_.size()));
  RoundMasters();
}

void Optimizer::RoundMasters() {
  if (std::exchange(rounded_, true)) return;
  for (Param* param : params_) Round(*param);
}

void Optimizer::Round(Param& param) {
  if (param.value.dtype() != DType::kBF16) return;
  Stream stream{.device = hyper_.device()};
  Cast(stream, {.from = param.master, .to = param.value});
}

std::vector<StatePiece> Optimizer::Owned() const { return List(true); }
std::vector<StatePiece> Optimizer::Held() {
  MastersChanged();
  return List(false);
}

std::vector<StatePiece> Optimizer::List(bool owned) const {
  std::vector<StatePiece> list;
  const auto add = [&](const std::string& group, int param, const Box& whole, const Tensor& data,
                       const Box& part) {
    // Parts are whole rows of what they are taken from.
    const int64_t row = whole.extent.rank() == 0 ? 0 : part.begin[0] - whole.begin[0];
    const Tensor rows = part == whole ? data : data.Rows(row, row + part.extent[0]);
    list.push_back({group, params_[param]->spec.name, part, rows});
  };
  const std::vector<std::string> names = rule_->StateNames();
  for (size_t b = 0; b < pieces_.size(); ++b) {
    const Bucket& bucket = layout_.buckets[b];
    const int rank = HoldersOf(bucket, groups_).rank();
    for (const Piece& piece : pieces_[b]) {
      for (const OwnedPiece& mine : layout_.entries[piece.param].owners) {
        if (!owned || !bucket.counted || mine.rank != rank) continue;
        add("param", piece.param, piece.box, piece.value, mine.box);
        for (size_t s = 0; s < names.size(); ++s) {
          add(names[s], piece.param, piece.box, piece.states[s], mine.box);
        }
      }
      for (size_t s = 0; !owned && s < names.size(); ++s) {
        add(names[s], piece.param, piece.box, piece.states[s], piece.box);
      }
    }
  }
  for (const LayoutEntry& entry : layout_.entries) {
    if (!owned) add("param", entry.param, entry.held, params_[entry.param]->master, entry.held);
  }
  return list;
}

}  // namespace lt2
