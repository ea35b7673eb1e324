#include "launch/train_step.h"

#include <algorithm>
#include <cmath>

#include "core/trace.h"
#include "kernels/elementwise.h"
#include "kernels/exit_loss.h"
#include "kernels/init.h"
#include "parallel/adamw_rule.h"

namespace lt2 {

TrainStep::TrainStep(const StepOptions& options, const Mesh& mesh, Communicator& dp)
    : options_(options),
      stream_{.device = options.device},
      model_(options.model),
      layout_(Layout(model_.params().specs(), mesh, options.zero)),
      ids_N_(Tensor::Empty({tokens_per_micro_batch()}, DType::kI32, options.device)),
      targets_N_(Tensor::Empty({tokens_per_micro_batch()}, DType::kI32, options.device)),
      documents_(tokens_per_micro_batch(), options.max_documents, options.device),
      sums_(Tensor::Zeros({model_.loss_sums()}, DType::kF64, options.device)),
      auxiliary_(Tensor::Zeros({1}, DType::kF64, options.device)) {
  const std::vector<Param*> params = model_.params().all();
  for (Param* param : params) {
    const Shape& shape = param->spec.shape;
    const DType master = AccumulatorOf(options.dtype);
    if (options.dtype != master && !param->spec.elementwise) {
      param->BindValue(Tensor::Empty(shape, options.dtype, options.device));
    }
    param->BindMaster(Tensor::Zeros(shape, master, options.device));
  }
  reducer_ = std::make_unique<Reducer>(params, layout_, dp);
  optimizer_ = std::make_unique<Optimizer>(
      params, layout_, dp, std::make_unique<AdamWRule>(options.optimizer), options.optimizer);
}

void TrainStep::InitializeParameters(uint64_t seed) {
  if (options_.device.backend == Backend::kMeta) return;
  for (Param* param : model_.params().all()) {
    InitParam(*param, seed);
  }
}

void TrainStep::Begin() {
  std::vector<int> uses = model_.UsesPerMicroBatch();
  for (int& use : uses) use *= static_cast<int>(options_.micro_batches);
  reducer_->BeginStep(uses);
  sums_.Zero();
  auxiliary_.Zero();
  optimizer_->WaitForValues();
}

void TrainStep::Load(const Batch& batch) {
  if (options_.device.backend == Backend::kMeta) return;
  CHECK_EQ(static_cast<int64_t>(batch.ids.size()), ids_N_.size());
  const auto fill = [](const Tensor& to, std::span<const int32_t> from) {
    to.CopyFrom(Tensor::FromHost(from, to.shape(), {Backend::kCpu}));
  };
  fill(ids_N_, batch.ids);
  fill(targets_N_, batch.targets);
  documents_.Fill(batch.cu_seqlens);
}

void TrainStep::MicroBatch(const Batch& batch, LoopDiagnostics* diagnostics) {
  Load(batch);
  Tape tape(stream_);
  LanguageModel::Loss loss;
  {
    TraceRange range("forward");
    loss = model_.Forward(tape, ids_N_, targets_N_, documents_,
                          {.recompute = options_.recompute, .diagnostics = diagnostics});
    AccumulateInto(stream_, sums_, loss.sums.value);
    for (const Var& own : loss.auxiliary) AccumulateInto(stream_, auxiliary_, own.value);
    has_auxiliary_losses_ = !loss.auxiliary.empty();
  }
  TraceRange range("backward");
  tape.Backward(model_.Seeds(loss, options_.optimizer.z_loss));
}

StepReport TrainStep::Finish(StepInput input) {
  reducer_->Finish();
  std::vector<double> sums(sums_.size(), 0.0);
  double auxiliary = 0;
  if (!sums_.on_meta()) {
    sums = sums_.ToDoubles();
    input.counted_tokens = sums[kCountedSum];
    auxiliary = auxiliary_.ToDoubles()[0];
    const bool finite = std::isfinite(auxiliary) &&
                        std::ranges::all_of(sums, [](double sum) { return std::isfinite(sum); });
    input.bad_losses = finite ? 0 : 1;
  }
  input.sums.insert(input.sums.begin(), sums.begin() + kHeadLossSums, sums.end());
  input.sums.insert(input.sums.begin(), {sums[kLossSum], auxiliary});
  TraceRange range("update");
  return optimizer_->Step(stream_, input);
}

TrainStep::Score TrainStep::Evaluate(const Batch& batch) {
  optimizer_->WaitForValues();
  Load(batch);
  const Tensor sums = model_.Evaluate(stream_, ids_N_, targets_N_, documents_);
  if (sums.on_meta()) return {};
  const std::vector<double> totals = sums.ToDoubles();
  return {.nll = totals[kLossSum], .counted = totals[kCountedSum]};
}

}  // namespace lt2
