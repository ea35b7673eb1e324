// One optimizer step of a language model on this rank: micro-batches forward and backward, gradient
// reduction, update. The same code runs on every backend; on kMeta it predicts memory and cost. On
// a GPU the host only queues work, and waits once, in Finish.
//
//   TrainStep step(options, mesh, groups);
//   step.InitializeParameters(seed);
//   step.Begin();
//   for (const Batch& batch : micro_batches) step.MicroBatch(batch);
//   StepReport report = step.Finish({.step = 1, .lr = 3e-4});
#pragma once

#include <functional>
#include <memory>

#include "data/loader.h"
#include "launch/step_graphs.h"
#include "model/language_model.h"
#include "parallel/optimizer.h"
#include "parallel/reducer.h"

namespace lt2 {

struct StepOptions {
  ModelConfig model;
  OptimizerConfig optimizer;
  int zero = 1;
  StateExchange state_exchange = StateExchange::kAuto;  // context parallel
  bool sequence_parallel = false;                       // tensor parallel
  RecomputePolicy recompute = RecomputePolicy::kNone;
  Rebuild rebuild = Rebuild::kNothing;  // at least, in backward
  DType dtype = DType::kF32;            // of activations and of what matrix products read
  Device device;
  int64_t sequence = 0;       // tokens of a window
  int64_t micro_batch = 1;    // windows at a time
  int64_t micro_batches = 1;  // of this rank in a step
  int64_t max_documents = 1;  // in a micro-batch
  bool graphs = false;        // steps are recorded and repeated where the device is a GPU
};

class TrainStep {
 public:
  // `groups` must outlive this.
  TrainStep(const StepOptions& options, const Mesh& mesh, const RankGroups& groups);
  TrainStep(const TrainStep&) = delete;

  // Fills every parameter from (seed, name, index): the same bits on every mesh.
  void InitializeParameters(uint64_t seed);

  // Once, when loading is done: memory for what a step holds beyond what stays between steps.
  void ReserveWorkspace(int64_t bytes) { graphs_.Reserve(bytes); }

  // diagnose: a micro-batch of this step will be asked for diagnostics, so that it is not repeated
  // from a record.
  void Begin(bool diagnose = false);
  // Forward and backward of micro_batch windows, StepOptions::micro_batches times a step; the last
  // reduces. Ranks of a context-parallel group get the same batch and take their tokens of it. On
  // kMeta the batch is not read.
  void MicroBatch(const Batch& batch, LoopDiagnostics* diagnostics = nullptr);
  // Called in every micro-batch when its forward is done and its backward has not begun.
  void OnForwardDone(std::function<void()> observer) { forward_done_ = std::move(observer); }
  // Updates, and adds to input what the micro-batches counted. The report's sums are {nll over
  // counted tokens of all ranks, the mixers' own losses of all ranks, with an exit gate its entropy
  // and p_1 … p_T, input's own …}.
  StepReport Finish(StepInput input);

  // Sum of losses over counted tokens, and their number, of the model as it decodes.
  struct Score {
    double nll = 0, counted = 0;
  };
  Score Evaluate(const Batch& batch);

  // Whether mixers have losses of their own.
  bool has_auxiliary_losses() const { return has_auxiliary_losses_; }

  LanguageModel& model() { return model_; }
  Optimizer& optimizer() { return *optimizer_; }
  const StepOptions& options() const { return options_; }
  int64_t tokens_per_micro_batch() const { return options_.micro_batch * options_.sequence; }

 private:
  void Load(const Batch& batch);
  const Documents& documents() const { return shard_ ? shard_->documents() : documents_; }
  void ForwardBackward(LoopDiagnostics* diagnostics);

  const StepOptions options_;
  Stream stream_;
  StepGraphs graphs_;
  std::function<void()> forward_done_;
  LanguageModel model_;
  LayoutTable layout_;
  std::unique_ptr<Reducer> reducer_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<ContextShard> shard_;  // null: all of a micro-batch's tokens are here
  std::unique_ptr<TensorShard> tensor_;  // null: all of every layer is here
  Upload tokens_2N_;                     // ids, then targets
  Tensor ids_N_, targets_N_;
  Documents documents_;
  // F64, of the step so far: sums of the model's losses, then the mixers' own.
  Tensor losses_, sums_, auxiliary_;
  int64_t micro_batch_ = 0;  // of this step, how many have run
  bool has_auxiliary_losses_ = false;
};

}  // namespace lt2
