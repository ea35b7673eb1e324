#include "launch/train_step.h"

#include <algorithm>

#include "core/trace.h"
#include "kernels/elementwise.h"
#include "kernels/exit_loss.h"
#include "kernels/init.h"
#include "parallel/adamw_rule.h"

namespace lt2 {
namespace {

// Of a step, for StepGraphs: a micro-batch by whether it is the first and the last, or the update.
constexpr int kFirst = 1, kLast = 2, kUpdate = 4;

}  // namespace

TrainStep::TrainStep(const StepOptions& options, const Mesh& mesh, const RankGroups& groups)
    : options_(options),
      stream_{.device = options.device},
      graphs_(options.graphs && options.device.backend == Backend::kCuda && mesh.pp == 1,
              options.device),
      model_(options.model, {.ranks = mesh.tp, .sequence = options.sequence_parallel},
             {.stage = groups.pp->rank(), .stages = mesh.pp}),
      layout_(Layout(model_.params().specs(), mesh, options.zero,
                     {.first_of_row = options.row_tiles > 1}, groups.tp->rank())),
      losses_(Tensor::Zeros({model_.loss_sums() + 1}, DType::kF64, options.device)),
      sums_(losses_.Rows(0, model_.loss_sums())),
      auxiliary_(losses_.Rows(model_.loss_sums(), model_.loss_sums() + 1)) {
  LanguageModel whole(options.model);
  has_auxiliary_losses_ = whole.has_auxiliary_losses();
  if (mesh.pp > 1) pipelined_ = MakePipelined(whole, groups);
  const auto add_batch = [&](Communicator& cp) {
    batches_.push_back(std::make_unique<LoadedBatch>(cp, tokens_per_micro_batch(),
                                                     options.max_documents, options.device,
                                                     options.state_exchange));
  };
  if (options.row_tiles > 1) tiles_ = TilesHere(*groups.cp, options.row_tiles);
  for (const auto& tile : tiles_) add_batch(*tile);
  const int64_t batches = pipelined_ ? options.micro_batches : tiles_.empty();
  for (int64_t m = 0; m < batches; ++m) add_batch(*groups.cp);
  if (mesh.tp > 1) {
    tensor_ =
        std::make_unique<TensorShard>(*groups.tp, options.sequence_parallel, batches_[0]->tokens());
  }
  const std::vector<Param*> params = model_.params().all();
  for (size_t p = 0; p < params.size(); ++p) {
    Param* const param = params[p];
    param->Hold(layout_.entries[p].held);
    const Shape& shape = param->held.extent;
    const DType master = AccumulatorOf(options.dtype);
    if (options.dtype != master && !param->spec.elementwise) {
      param->BindValue(Tensor::Empty(shape, options.dtype, options.device));
    }
    param->BindMaster(Tensor::Zeros(shape, master, options.device));
  }
  reducer_ = std::make_unique<Reducer>(params, layout_, groups);
  if (!tiles_.empty()) {
    turns_ = std::make_unique<GradientTurns>(params, *groups.replicas, mesh.cp);
  }
  optimizer_ = std::make_unique<Optimizer>(params, layout_, groups, *reducer_,
                                           std::make_unique<AdamWRule>(options.optimizer),
                                           options.optimizer);
}

void TrainStep::InitializeParameters(uint64_t seed) {
  if (options_.device.backend == Backend::kMeta) return;
  for (Param* param : model_.params().all()) {
    InitParam(*param, seed);
  }
  optimizer_->MastersChanged();
}

void TrainStep::Begin(bool diagnose) {
  optimizer_->RoundMasters();
  graphs_.BeginStep(/*may_repeat=*/!diagnose);
  micro_batch_ = 0;
}

void TrainStep::BeginGradients() {
  std::vector<int> uses = model_.UsesPerMicroBatch();
  int rounds = static_cast<int>(options_.micro_batches);
  if (turns_) {
    // In each tile of each micro-batch, and when the sum is handed on.
    for (int& use : uses) use = use * rounds * static_cast<int>(tiles_.size()) + 1;
    rounds = 1;
  }
  optimizer_->GatherValues(/*again=*/graphs_.recording());
  reducer_->BeginStep(uses, rounds);
  losses_.Zero();
}

void TrainStep::MicroBatch(const Batch& batch, LoopDiagnostics* diagnostics) {
  CHECK_LT(micro_batch_, options_.micro_batches);
  CHECK(diagnostics == nullptr || !(graphs_.recording() || graphs_.repeating()))
      << "Begin was not told of diagnostics";
  const int64_t at = micro_batch_++;
  const bool first = at == 0, last = micro_batch_ == options_.micro_batches;
  if (pipelined_) {
    batches_[at]->Load(batch);
    if (diagnostics != nullptr) {
      pipelined_->diagnostics = diagnostics;
      pipelined_->diagnosed = at;
    }
    if (last) RunStages();
    return;
  }
  for (const auto& part : batches_) part->Load(batch);
  graphs_.Run((first ? kFirst : 0) + (last ? kLast : 0), [&] {
    if (first) BeginGradients();
    ForwardBackward(diagnostics);
    last ? reducer_->Finish() : reducer_->Settle();
  });
  if (first) optimizer_->Gathered();
}

ForwardOptions TrainStep::OptionsFor(const LoadedBatch& batch) const {
  return {.shard = batch.shard(), .tensor = tensor_.get()};
}

ForwardOptions TrainStep::TrainingOptionsFor(const LoadedBatch& batch,
                                             LoopDiagnostics* diagnostics) {
  ForwardOptions options = OptionsFor(batch);
  options.recompute = options_.recompute;
  options.diagnostics = diagnostics;
  options.before_params = [this](int end) { optimizer_->WaitForValues(end); };
  options.z_loss = options_.optimizer.z_loss;
  return options;
}

void TrainStep::ForwardBackward(LoopDiagnostics* diagnostics) {
  Tape tape(stream_);
  tape.set_rebuild(options_.LeastRebuild());
  std::vector<Tape::Seed> seeds;
  {
    TraceRange range("forward");
    for (size_t part = 0; part < batches_.size(); ++part) {
      for (Tape::Seed& seed : Forward(tape, part, diagnostics)) seeds.push_back(std::move(seed));
    }
  }
  if (forward_done_) forward_done_();
  TraceRange range("backward");
  const bool last = micro_batch_ == options_.micro_batches;
  if (turns_) turns_->Take(/*first_backward=*/micro_batch_ == 1);
  tape.Backward(std::move(seeds));
  if (!turns_) return;
  turns_->HandOn(last);
  if (!last) return;
  for (Param* param : model_.params().all()) param->Arrive();
}

std::vector<Tape::Seed> TrainStep::Forward(Tape& tape, size_t part, LoopDiagnostics* diagnostics) {
  const LoadedBatch& batch = *batches_[part];
  ForwardOptions options = TrainingOptionsFor(batch, turns_ ? nullptr : diagnostics);
  if (turns_) options.z_loss = {};  // all gradients are made in the backward
  const LanguageModel::Loss loss =
      model_.Forward(tape, batch.ids_N(), batch.targets_N(), batch.documents(), std::move(options));
  const Tensor losses =
      turns_ ? Tensor::Zeros(losses_.shape(), DType::kF64, options_.device) : losses_;
  const int64_t sums = sums_.size();
  AccumulateInto(stream_, losses.Rows(0, sums), loss.sums.value);
  for (const Var& own : loss.auxiliary) {
    AccumulateInto(stream_, losses.Rows(sums, sums + 1), own.value);
  }
  if (turns_) {
    SumOverTiles(stream_, *tiles_[part], losses);
    AccumulateInto(stream_, losses_, losses);
  }
  return model_.Seeds(loss, options_.optimizer.z_loss);
}

PipelineShape PipelineShapeOf(const StepOptions& options, LanguageModel& whole, int stages) {
  const double visit = whole.stack().FlopsPerToken(options.sequence) /
                       static_cast<double>(options.model.loops * stages);
  return {.pipeline = options.pipeline,
          .stages = stages,
          .loops = static_cast<int>(options.model.loops),
          .micro_batches = static_cast<int>(options.micro_batches),
          .costs = {.head = 3 * whole.HeadFlopsPerToken() / visit}};
}

std::unique_ptr<TrainStep::Pipelined> TrainStep::MakePipelined(LanguageModel& whole,
                                                               const RankGroups& groups) const {
  return std::make_unique<Pipelined>(
      Pipelined{.pp = groups.pp.get(),
                .links = &groups.links,
                .plan = MakePipelinePlan(PipelineShapeOf(options_, whole, groups.pp->size()))});
}

ModelStage::MicroBatch TrainStep::ForStage(const LoadedBatch& batch, ForwardOptions options) const {
  return {batch.ids_N(), batch.targets_N(), &batch.documents(), std::move(options)};
}

void TrainStep::RunStages() {
  BeginGradients();
  Pipelined& pipelined = *pipelined_;
  std::vector<ModelStage::MicroBatch> micro_batches;
  for (size_t m = 0; m < batches_.size(); ++m) {
    const bool diagnosed = static_cast<int64_t>(m) == pipelined.diagnosed;
    micro_batches.push_back(
        ForStage(*batches_[m],
                 TrainingOptionsFor(*batches_[m], diagnosed ? pipelined.diagnostics : nullptr)));
  }
  ModelStage stage(model_, stream_,
                   {.task = ModelStage::Task::kTrain,
                    .dtype = options_.dtype,
                    .z_loss = options_.optimizer.z_loss,
                    .rebuild = options_.LeastRebuild(),
                    .defers_weights = options_.pipeline == Pipeline::kRingZb},
                   std::move(micro_batches), {.losses = sums_, .auxiliary = auxiliary_});
  stage.OnForwardDone(forward_done_);
  RunPipeline(pipelined.plan, pipelined.pp->rank(), *pipelined.links, stage);
  reducer_->Finish();
  optimizer_->Gathered();
  if (std::exchange(pipelined.diagnostics, nullptr) != nullptr) {
    stage.SumDiagnostics(*pipelined.pp);
  }
}

Tensor TrainStep::EvaluateStages(size_t count) {
  const Pipelined& pipelined = *pipelined_;
  const Tensor sums = Tensor::Zeros({kHeadLossSums}, DType::kF64, options_.device);
  std::vector<ModelStage::MicroBatch> batches;
  for (size_t m = 0; m < count; ++m) {
    batches.push_back(ForStage(*batches_[m], OptionsFor(*batches_[m])));
  }
  ModelStage stage(model_, stream_, {.task = ModelStage::Task::kEvaluate, .dtype = options_.dtype},
                   std::move(batches), {.losses = sums});
  RunPipeline(MakeForwardPlan(pipelined.pp->size(), static_cast<int>(options_.model.loops),
                              static_cast<int>(count)),
              pipelined.pp->rank(), *pipelined.links, stage);
  return sums;
}

StepReport TrainStep::Finish(StepInput input) {
  CHECK_EQ(micro_batch_, options_.micro_batches);
  input.losses = losses_;
  input.tokens_at = kCountedSum;
  optimizer_->Prepare(input);
  graphs_.Run(kUpdate, [&] {
    TraceRange range("update");
    // What a record starts it must also wait for: then the next forward's gathers, beside its work.
    optimizer_->Update(stream_, /*gather=*/!graphs_.on());
  });
  optimizer_->Updated(/*gather=*/!graphs_.on());
  StepReport report = optimizer_->Report();
  graphs_.EndStep();
  const std::vector<double>& losses = report.losses;
  std::vector<double> sums = {losses[kLossSum], losses.back()};
  sums.insert(sums.end(), losses.begin() + kHeadLossSums, losses.end() - 1);
  sums.insert(sums.end(), report.sums.begin(), report.sums.end());
  report.sums = std::move(sums);
  return report;
}

TrainStep::Score TrainStep::Evaluate(std::span<const Batch> batches) {
  optimizer_->WaitForValues();
  Score score;
  const size_t at_once = pipelined_ ? batches_.size() : 1;
  for (size_t first = 0; first < batches.size(); first += at_once) {
    const size_t count = std::min(at_once, batches.size() - first);
    for (size_t part = 0; part < (pipelined_ ? count : batches_.size()); ++part) {
      batches_[part]->Load(batches[pipelined_ ? first + part : first]);
    }
    graphs_.RunApart([&] {
      const Tensor sums = pipelined_ ? EvaluateStages(count) : EvaluateAlone();
      if (sums.on_meta()) return;
      const std::vector<double> totals = sums.ToDoubles();
      score.nll += totals[kLossSum];
      score.counted += totals[kCountedSum];
    });
  }
  return score;
}

Tensor TrainStep::EvaluateAlone() {
  Tensor all;
  for (size_t part = 0; part < batches_.size(); ++part) {
    const LoadedBatch& batch = *batches_[part];
    const Tensor sums = model_.Evaluate(stream_, batch.ids_N(), batch.targets_N(),
                                        batch.documents(), OptionsFor(batch));
    if (turns_) SumOverTiles(stream_, *tiles_[part], sums);
    if (all.defined()) AccumulateInto(stream_, sums, all);
    all = sums;
  }
  return all;
}

}  // namespace lt2
