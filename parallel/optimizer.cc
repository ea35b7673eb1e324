#include "parallel/optimizer.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/log.h"
#include "core/strings.h"
#include "kernels/elementwise.h"
#include "parallel/grad_norm.h"

namespace lt2 {
namespace {

// A spike is judged once this many norms were seen, against deviations of at least this share of
// the mean; the running mean forgets over kMemory steps.
constexpr int64_t kFirstNorms = 20;
constexpr double kLeastDeviation = 0.01, kMemory = 50;

}  // namespace

Optimizer::Optimizer(std::span<Param* const> params, const LayoutTable& layout, Communicator& dp,
                     std::unique_ptr<UpdateRule> rule, const OptimizerConfig& config)
    : params_(params.begin(), params.end()),
      layout_(layout),
      dp_(dp),
      rule_(std::move(rule)),
      config_(config),
      gathers_(layout.buckets.size()) {
  CHECK_EQ(params_.size(), layout.entries.size());
  CHECK_EQ(dp.size(), layout.dp);
  hyper_ = Tensor::Zeros({kHyperSize}, DType::kF64, params_[0]->master.device());
  for (const Bucket& bucket : layout.buckets) {
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
      CHECK(param.main_grad.defined()) << param.spec.name << ": make the reducer first";
      for (const OwnedPiece& piece : entry.owners) {
        if (piece.rank != dp.rank()) continue;
        unique_params_.push_back(p);
        unique_gradients_.push_back(param.main_grad.Flat(piece.offset, piece.box.size()));
        if (layout.zero > 0) pieces.push_back(MakePiece(p, piece.box, piece.offset));
      }
      if (layout.zero == 0) pieces.push_back(MakePiece(p, entry.held, 0));
    }
  }
  const int64_t unique = static_cast<int64_t>(unique_gradients_.size());
  squares_ = Tensor::Zeros({unique}, DType::kF64, hyper_.device());
}

Optimizer::~Optimizer() { WaitForValues(); }

Optimizer::Piece Optimizer::MakePiece(int param, const Box& box, int64_t offset) const {
  CHECK(!rule_->NeedsWholeParameters() || box == layout_.entries[param].held)
      << params_[param]->spec.name << ": this update rule needs LayoutOptions::whole_parameters";
  const Param& p = *params_[param];
  Piece piece{.param = param,
              .box = box,
              .value = p.master.Flat(offset, box.size()).Reshape(box.extent),
              .gradient = p.main_grad.Flat(offset, box.size()).Reshape(box.extent),
              .states = {}};
  for (size_t s = 0; s < rule_->StateNames().size(); ++s) {
    piece.states.push_back(Tensor::Zeros(box.extent, p.master.dtype(), p.master.device()));
  }
  return piece;
}

StepReport Optimizer::Step(Stream& stream, const StepInput& input) {
  WaitForValues();
  StepReport report{.sums = input.sums, .maxes = input.maxes};
  SquaredNorms(stream, unique_gradients_, squares_);
  if (stream.device.backend != Backend::kMeta) {
    const auto [square, nonfinite] = SumSquares();
    std::vector<double> sums = {square, nonfinite + input.bad_losses, input.counted_tokens};
    sums.insert(sums.end(), input.sums.begin(), input.sums.end());
    ReduceScalars(dp_, sums, report.maxes);
    report.nonfinite = sums[1];
    report.counted_tokens = sums[2];
    report.grad_norm = report.nonfinite > 0
                           ? std::numeric_limits<double>::quiet_NaN()
                           : std::sqrt(sums[0]) / std::max(report.counted_tokens, 1.0);
    report.clip_factor = ClipFactor(report.grad_norm, config_.clip);
    std::copy(sums.begin() + 3, sums.end(), report.sums.begin());
    report.skipped = ReasonToSkip(report);
    Count(report);
    std::vector<double> hyper(kHyperSize);
    hyper[kHyperLr] = input.lr;
    hyper[kHyperGradScale] = report.clip_factor / std::max(report.counted_tokens, 1.0);
    hyper[kHyperStep] = static_cast<double>(counters_.norms);
    hyper[kHyperSkip] = *report.skipped ? 1 : 0;
    hyper_.CopyFrom(Tensor::FromHost(hyper, {kHyperSize}, DType::kF64, {Backend::kCpu}));
  }
  // The values that the next forward reads first are gathered first.
  for (int bucket = static_cast<int>(pieces_.size()) - 1; bucket >= 0; --bucket) {
    UpdateBucket(stream, bucket);
  }
  return report;
}

std::pair<double, double> Optimizer::SumSquares() const {
  const std::vector<double> squares = squares_.ToDoubles();
  double sum = 0, nonfinite = 0;
  for (size_t i = 0; i < unique_params_.size(); ++i) {
    const double square = squares[i];
    if (std::isfinite(square)) {
      sum += square;
    } else if (nonfinite++ == 0) {
      LogWarn(StrCat("the gradient of ", params_[unique_params_[i]]->spec.name, " is not finite"));
    }
  }
  return {sum, nonfinite};
}

void Optimizer::UpdateBucket(Stream& stream, int bucket) {
  for (const Piece& piece : pieces_[bucket]) {
    const ParamSpec& spec = params_[piece.param]->spec;
    rule_->Update(stream, {.spec = &spec,
                           .box = &piece.box,
                           .value = piece.value,
                           .gradient = piece.gradient,
                           .states = piece.states,
                           .decay = spec.decay || config_.decay_all,
                           .hyper = hyper_});
  }
  if (layout_.zero > 0) {
    gathers_[bucket] =
        dp_.AllGatherAsync(values_[bucket], layout_.buckets[bucket].shard_counts, "gather_values");
  }
}

const char* Optimizer::ReasonToSkip(const StepReport& report) const {
  if (report.nonfinite > 0 || !std::isfinite(report.grad_norm)) return "non-finite gradient";
  if (report.counted_tokens == 0) return "no token counts";
  if (config_.spike_z > 0 && counters_.norms >= kFirstNorms) {
    const double deviation =
        std::max(std::sqrt(counters_.norm_variance), kLeastDeviation * counters_.norm_mean);
    if (report.grad_norm > counters_.norm_mean + config_.spike_z * deviation) return "norm spike";
  }
  return "";
}

void Optimizer::Count(const StepReport& report) {
  if (*report.skipped) {
    ++counters_.skipped;
    ++counters_.skipped_in_row;
    return;
  }
  counters_.skipped_in_row = 0;
  ++counters_.norms;
  const double weight = std::max(1.0 / static_cast<double>(counters_.norms), 1 / kMemory);
  const double delta = report.grad_norm - counters_.norm_mean;
  counters_.norm_mean += weight * delta;
  counters_.norm_variance = (1 - weight) * (counters_.norm_variance + weight * delta * delta);
}

void Optimizer::WaitForValues() {
  for (Pending& gather : gathers_) gather.Wait();
  Stream stream{.device = hyper_.device()};
  for (Param* param : params_) {
    if (param->value.dtype() == DType::kBF16) {
      Cast(stream, {.from = param->master, .to = param->value});
    }
  }
}

std::vector<StatePiece> Optimizer::Owned() const { return List(true); }
std::vector<StatePiece> Optimizer::Held() const { return List(false); }

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
  for (const std::vector<Piece>& pieces : pieces_) {
    for (const Piece& piece : pieces) {
      for (const OwnedPiece& mine : layout_.entries[piece.param].owners) {
        if (!owned || mine.rank != dp_.rank()) continue;
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
