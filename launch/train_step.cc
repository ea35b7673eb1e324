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
      graphs_(options.graphs && options.device.backend == Backend::kCuda, options.device),
      model_(options.model, {.ranks = mesh.tp, .sequence = options.sequence_parallel}),
      layout_(Layout(model_.params().specs(), mesh, options.zero, {}, groups.tp->rank())),
      shard_(mesh.cp == 1 ? nullptr
                          : std::make_unique<ContextShard>(*groups.cp, tokens_per_micro_batch(),
                                                           options.max_documents, options.device,
                                                           options.state_exchange)),
      tensor_(mesh.tp == 1 ? nullptr
                           : std::make_unique<TensorShard>(
                                 *groups.tp, options.sequence_parallel,
                                 shard_ ? shard_->tokens() : tokens_per_micro_batch())),
      tokens_2N_({2, shard_ ? shard_->tokens() : tokens_per_micro_batch()}, DType::kI32,
                 options.device),
      ids_N_(tokens_2N_.tensor().Rows(0, 1).Reshape({tokens_2N_.tensor().dim(1)})),
      targets_N_(tokens_2N_.tensor().Rows(1, 2).Reshape(ids_N_.shape())),
      documents_(tokens_per_micro_batch(), options.max_documents, options.device),
      losses_(Tensor::Zeros({model_.loss_sums() + 1}, DType::kF64, options.device)),
      sums_(losses_.Rows(0, model_.loss_sums())),
      auxiliary_(losses_.Rows(model_.loss_sums(), model_.loss_sums() + 1)) {
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
  optimizer_ = std::make_unique<Optimizer>(
      params, layout_, groups, std::make_unique<AdamWRule>(options.optimizer), options.optimizer);
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

void TrainStep::Load(const Batch& batch) {
  if (options_.device.backend == Backend::kMeta) return;
  CHECK_EQ(static_cast<int64_t>(batch.ids.size()), tokens_per_micro_batch());
  CHECK_EQ(batch.targets.size(), batch.ids.size());
  const int64_t first = shard_ ? shard_->begin() : 0, count = ids_N_.size();
  int32_t* const to = tokens_2N_.Next<int32_t>();
  std::copy_n(batch.ids.begin() + first, count, to);
  std::copy_n(batch.targets.begin() + first, count, to + count);
  tokens_2N_.Send();
  if (shard_) {
    shard_->Fill(batch.cu_seqlens);
  } else {
    documents_.Fill(batch.cu_seqlens);
  }
}

void TrainStep::MicroBatch(const Batch& batch, LoopDiagnostics* diagnostics) {
  CHECK_LT(micro_batch_, options_.micro_batches);
  CHECK(diagnostics == nullptr || !(graphs_.recording() || graphs_.repeating()))
      << "Begin was not told of diagnostics";
  Load(batch);
  const bool first = micro_batch_ == 0, last = ++micro_batch_ == options_.micro_batches;
  graphs_.Run((first ? kFirst : 0) + (last ? kLast : 0), [&] {
    if (first) {
      std::vector<int> uses = model_.UsesPerMicroBatch();
      for (int& use : uses) use *= static_cast<int>(options_.micro_batches);
      optimizer_->GatherValues(/*again=*/graphs_.recording());
      reducer_->BeginStep(uses);
      losses_.Zero();
    }
    ForwardBackward(diagnostics);
    if (last) reducer_->Finish();
  });
  if (first) optimizer_->Gathered();
}

void TrainStep::ForwardBackward(LoopDiagnostics* diagnostics) {
  Tape tape(stream_);
  tape.set_rebuild(options_.rebuild);
  LanguageModel::Loss loss;
  {
    TraceRange range("forward");
    loss = model_.Forward(tape, ids_N_, targets_N_, documents(),
                          {.recompute = options_.recompute,
                           .diagnostics = diagnostics,
                           .before_params = [this](int end) { optimizer_->WaitForValues(end); },
                           .shard = shard_.get(),
                           .tensor = tensor_.get(),
                           .z_loss = options_.optimizer.z_loss});
    AccumulateInto(stream_, sums_, loss.sums.value);
    for (const Var& own : loss.auxiliary) AccumulateInto(stream_, auxiliary_, own.value);
    has_auxiliary_losses_ = !loss.auxiliary.empty();
  }
  if (forward_done_) forward_done_();
  TraceRange range("backward");
  tape.Backward(model_.Seeds(loss, options_.optimizer.z_loss));
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

TrainStep::Score TrainStep::Evaluate(const Batch& batch) {
  optimizer_->WaitForValues();
  Load(batch);
  Score score;
  graphs_.RunApart([&] {
    const Tensor sums = model_.Evaluate(stream_, ids_N_, targets_N_, documents(),
                                        {.shard = shard_.get(), .tensor = tensor_.get()});
    if (sums.on_meta()) return;
    const std::vector<double> totals = sums.ToDoubles();
    score = {.nll = totals[kLossSum], .counted = totals[kCountedSum]};
  });
  return score;
}

}  // namespace lt2
