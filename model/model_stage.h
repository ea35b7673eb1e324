// What one stage of a pipeline computes of a language model, a visit at a time (RunPipeline): a
// micro-batch going once through the blocks that are here. Every visit has a tape of its own, which
// ends where the next stage's begins.
//
// Stage 0 embeds, and closes loops: the output h̃ₜ of the last stage arrives there and becomes hₜ
// with hₜ₋₁, which stayed, before it goes into the next visit or the head. So gradients of hₜ₋₁,
// and of what an exit gate read out of it, come from the visit after; they wait as seeds.
#pragma once

#include <functional>
#include <map>
#include <vector>

#include "model/language_model.h"
#include "parallel/pipeline_run.h"

namespace lt2 {

class ModelStage final : public PipelineStage {
 public:
  // As this rank has them; ids and targets are read by stage 0 alone. options.diagnostics, where
  // not null, is filled as far as this stage knows; the rest by SumDiagnostics.
  struct MicroBatch {
    Tensor ids_N, targets_N;
    const Documents* documents = nullptr;
    ForwardOptions options = {};
  };
  // Where sums over micro-batches are added: F64 [loss_sums()] (evaluating: [kHeadLossSums]) and
  // [1], of auxiliary losses.
  struct Sums {
    Tensor losses, auxiliary;
  };
  enum class Task : uint8_t { kTrain, kEvaluate };
  struct Options {
    Task task = Task::kTrain;
    DType dtype = DType::kF32;  // of activations
    double z_loss = 0;          // of the objective
    Rebuild rebuild = Rebuild::kNothing;
    // Weight gradients wait for BackwardWeight, and what they read with them; else they are
    // BackwardInput's work too.
    bool defers_weights = false;
  };

  // The references must outlive the stage.
  ModelStage(LanguageModel& model, Stream& stream, const Options& options,
             std::vector<MicroBatch> micro_batches, const Sums& sums);

  Tensor NewMessage() override;
  Tensor Forward(int micro_batch, int loop, const Tensor& x) override;
  Tensor Head(int micro_batch, const Tensor& x) override;
  Tensor BackwardInput(int micro_batch, int loop, const Tensor& dy) override;
  void BackwardWeight(int micro_batch, int loop) override;

  // Called when a visit's forward is done: when most is held.
  void OnForwardDone(std::function<void()> observer) { forward_done_ = std::move(observer); }
  // Once the pipeline has run: what several stages know a part of. Every stage calls it.
  void SumDiagnostics(Communicator& pp);

 private:
  struct Visit {
    explicit Visit(Stream& stream) : tape(stream) {}
    Tape tape;
    Var in, previous;                            // leaves: what arrived, and hₜ₋₁
    Var h, out;                                  // what goes into the blocks, and comes out
    std::vector<Var> auxiliary;                  // losses
    LanguageModel::Readouts readouts;            // of h
    std::vector<Tape::Seed> seeds;               // what later visits found
    std::vector<std::function<void()>> weights;  // gradients held back
  };
  bool trains() const { return options_.task == Task::kTrain; }
  Visit& At(int micro_batch, int loop);
  Visit& Begin(int micro_batch, int loop);
  // x = h̃ₜ becomes hₜ: the visit's h.
  void CloseLoop(Visit& visit, int micro_batch, int loop, const Tensor& x);

  LanguageModel& model_;
  Stream& stream_;
  const Options options_;
  std::vector<MicroBatch> micro_batches_;
  const Sums sums_;
  std::function<void()> forward_done_;
  std::map<std::pair<int, int>, Visit> visits_;  // by micro-batch and loop
  LoopDiagnostics* diagnostics_ = nullptr;       // of the micro-batch that has any
  std::vector<Tensor> masses_;                   // on first tokens, of its loops
};

}  // namespace lt2
