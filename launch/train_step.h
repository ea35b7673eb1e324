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

#include "launch/loaded_batch.h"
#include "launch/step_graphs.h"
#include "model/model_stage.h"
#include "parallel/optimizer.h"
#include "parallel/reducer.h"
#include "parallel/row_tiles.h"

namespace lt2 {

struct StepOptions {
  ModelConfig model;
  OptimizerConfig optimizer;
  int zero = 1;
  StateExchange state_exchange = StateExchange::kAuto;  // context parallel
  int row_tiles = 1;  // > 1: the same bits for every cp that divides it; one stage, on a CPU
  bool sequence_parallel = false;       // tensor parallel
  Pipeline pipeline = Pipeline::kRing;  // where there are stages
  RecomputePolicy recompute = RecomputePolicy::kNone;
  Rebuild rebuild = Rebuild::kNothing;  // in backward, unless recompute is kKeep
  DType dtype = DType::kF32;            // of activations and of what matrix products read
  Device device;
  int64_t sequence = 0;       // tokens of a window
  int64_t micro_batch = 1;    // windows at a time
  int64_t micro_batches = 1;  // of this rank in a step
  int64_t max_documents = 1;  // in a micro-batch
  bool graphs = false;        // steps are recorded and repeated where the device is a GPU and
                              // there is one stage

  Rebuild LeastRebuild() const {
    return recompute == RecomputePolicy::kKeep ? Rebuild::kNothing : rebuild;
  }
};

// How `stages` stages of a pipeline take a step: jobs are ordered for what they cost, a stage's
// share of a loop three times over, and the head. `whole`: of options.model.
PipelineShape PipelineShapeOf(const StepOptions& options, LanguageModel& whole, int stages);

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
  // reduces, and in a pipeline does all the work. Ranks along cp, tp and pp get the same batch and
  // take their tokens of it. On kMeta the batch is not read. Diagnostics, of one micro-batch, are
  // complete after the last on ranks of stage 0. None are taken of rows in tiles.
  void MicroBatch(const Batch& batch, LoopDiagnostics* diagnostics = nullptr);
  // Called whenever a forward is done and its backward has not begun.
  void OnForwardDone(std::function<void()> observer) { forward_done_ = std::move(observer); }
  // Updates, and adds to input what the micro-batches counted. The report's sums are {nll over
  // counted tokens of all ranks, the mixers' own losses of all ranks, with an exit gate its entropy
  // and p_1 … p_T, input's own …}.
  StepReport Finish(StepInput input);

  // Sum of losses over counted tokens, and their number, of the model as it decodes. On ranks of
  // stage 0; elsewhere 0.
  struct Score {
    double nll = 0, counted = 0;
  };
  Score Evaluate(std::span<const Batch> batches);
  Score Evaluate(const Batch& batch) { return Evaluate(std::span(&batch, 1)); }

  // Whether mixers have losses of their own.
  bool has_auxiliary_losses() const { return has_auxiliary_losses_; }

  LanguageModel& model() { return model_; }
  Optimizer& optimizer() { return *optimizer_; }
  const LayoutTable& layout() const { return layout_; }
  Stream& stream() { return stream_; }
  const Reducer& reducer() const { return *reducer_; }
  const StepOptions& options() const { return options_; }
  int64_t tokens_per_micro_batch() const { return options_.micro_batch * options_.sequence; }

 private:
  // Of a step, its first and its last micro-batch.
  void BeginGradients();
  void ForwardBackward(LoopDiagnostics* diagnostics);
  std::vector<Tape::Seed> Forward(Tape& tape, size_t part, LoopDiagnostics* diagnostics);

  // Where stages share the blocks.
  struct Pipelined {
    Communicator* pp = nullptr;
    const PipelineLinks* links = nullptr;
    PipelinePlan plan;
    LoopDiagnostics* diagnostics = nullptr;  // of micro-batch `diagnosed` of this step
    int64_t diagnosed = 0;
  };
  std::unique_ptr<Pipelined> MakePipelined(LanguageModel& whole, const RankGroups& groups) const;
  ModelStage::MicroBatch ForStage(const LoadedBatch& batch, ForwardOptions options) const;
  void RunStages();
  Tensor EvaluateStages(size_t batches);
  Tensor EvaluateAlone();

  ForwardOptions OptionsFor(const LoadedBatch& batch) const;
  ForwardOptions TrainingOptionsFor(const LoadedBatch& batch, LoopDiagnostics* diagnostics);

  const StepOptions options_;
  Stream stream_;
  StepGraphs graphs_;
  std::function<void()> forward_done_;
  LanguageModel model_;
  LayoutTable layout_;
  std::unique_ptr<Reducer> reducer_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<Pipelined> pipelined_;              // null: all layers are here
  std::vector<std::unique_ptr<Communicator>> tiles_;  // none: rows are not cut into tiles
  std::unique_ptr<GradientTurns> turns_;              // of tiles
  // One, all of a pipeline's step, or one in tiles.
  std::vector<std::unique_ptr<LoadedBatch>> batches_;
  std::unique_ptr<TensorShard> tensor_;  // null: all of every layer is here
  // F64, of the step so far: sums of the model's losses, then the mixers' own.
  Tensor losses_, sums_, auxiliary_;
  int64_t micro_batch_ = 0;            // of this step, how many have run
  bool has_auxiliary_losses_ = false;  // in any stage
};

}  // namespace lt2
