#include "model/model_stage.h"

#include "core/trace.h"
#include "kernels/elementwise.h"
#include "parallel/reduce_scalars.h"

namespace lt2 {
namespace {

// A leaf of `tape` for a value of another, and where its gradient is to go.
Var Leaf(Tape& tape, const Var& of, std::vector<Var>* from, std::vector<Var>* leaves) {
  const Var leaf = tape.Input(of.value, /*needs_grad=*/true);
  from->push_back(of);
  leaves->push_back(leaf);
  return leaf;
}

}  // namespace

ModelStage::ModelStage(LanguageModel& model, Stream& stream, const Options& options,
                       std::vector<MicroBatch> micro_batches, const Sums& sums)
    : model_(model),
      stream_(stream),
      options_(options),
      micro_batches_(std::move(micro_batches)),
      sums_(sums) {
  const int64_t loops = model_.config().loops;
  for (MicroBatch& each : micro_batches_) {
    ForwardOptions& with = each.options;
    if (with.tensor != nullptr && with.tensor->size() == 1) with.tensor = nullptr;
    if (with.diagnostics == nullptr) continue;
    CHECK(diagnostics_ == nullptr) << "diagnostics are of one micro-batch";
    diagnostics_ = with.diagnostics;
    diagnostics_->Clear(loops);
    for (int64_t t = 0; t < loops; ++t) {
      masses_.push_back(Tensor::Zeros({2}, DType::kF64, stream.device));
    }
  }
}

Tensor ModelStage::NewMessage() {
  const MicroBatch& like = micro_batches_[0];
  const TensorShard* const tensor = like.options.tensor;
  const bool shares = tensor != nullptr && tensor->sequence();
  const int64_t tokens = shares ? tensor->Begin(tensor->rank() + 1) - tensor->Begin(tensor->rank())
                                : like.ids_N.size();
  return Tensor::Empty({tokens, model_.config().width}, options_.dtype, stream_.device);
}

ModelStage::Visit& ModelStage::At(int micro_batch, int loop) {
  const auto found = visits_.find({micro_batch, loop});
  CHECK(found != visits_.end()) << "micro-batch " << micro_batch << " has not been in loop "
                                << loop;
  return found->second;
}

ModelStage::Visit& ModelStage::Begin(int micro_batch, int loop) {
  Visit& visit = visits_.try_emplace({micro_batch, loop}, stream_).first->second;
  visit.tape.set_recording(trains());
  visit.tape.set_rebuild(options_.rebuild);
  return visit;
}

void ModelStage::CloseLoop(Visit& visit, int micro_batch, int loop, const Tensor& x) {
  Visit& before = At(micro_batch, loop - 1);
  const MicroBatch& with = micro_batches_[micro_batch];
  visit.in = visit.tape.Input(x, /*needs_grad=*/true);
  visit.previous = visit.tape.Input(before.h.value, /*needs_grad=*/true);
  if (!trains()) visits_.erase({micro_batch, loop - 1});
  const Var h = model_.stack().EndLoop(visit.tape, visit.in, visit.previous, loop - 1);
  visit.h = LoopedStack::Observe(visit.tape, h, loop - 1, with.options);
  if (!trains()) return;
  model_.ReadOut(visit.tape, visit.h, loop - 1, with.targets_N, with.options, &visit.readouts);
}

Tensor ModelStage::Forward(int micro_batch, int loop, const Tensor& x) {
  const TraceRange range("forward");
  const MicroBatch& with = micro_batches_[micro_batch];
  Visit& visit = Begin(micro_batch, loop);
  if (!x.defined()) {
    visit.h = model_.Embedded(visit.tape, with.ids_N, with.options);
  } else if (model_.is_first_stage() && loop > 0) {
    CloseLoop(visit, micro_batch, loop, x);
  } else {
    visit.h = visit.in = visit.tape.Input(x, /*needs_grad=*/true);
  }
  const Tensor mass = with.options.diagnostics == nullptr ? Tensor() : masses_[loop];
  const auto blocks = [this, loop, &with, mass](Tape& tape, std::span<const Var> in) {
    return model_.stack().RunBlocks(tape, in[0], loop, *with.documents, with.options, mass);
  };
  const std::span<const Var> in(&visit.h, 1);
  const bool again = with.options.recompute == RecomputePolicy::kLoop;
  std::vector<Var> out = again ? visit.tape.Recompute(in, blocks) : blocks(visit.tape, in);
  visit.out = out[0];
  visit.auxiliary.assign(out.begin() + 1, out.end());
  if (forward_done_) forward_done_();
  if (!trains()) {
    if (!model_.is_first_stage()) visits_.erase({micro_batch, loop});
    return out[0].value;
  }
  for (const Var& own : visit.auxiliary) AccumulateInto(stream_, sums_.auxiliary, own.value);
  return out[0].value;
}

Tensor ModelStage::Head(int micro_batch, const Tensor& x) {
  const TraceRange range("head");
  const MicroBatch& with = micro_batches_[micro_batch];
  const int loops = static_cast<int>(model_.config().loops);
  Visit visit(stream_);
  visit.tape.set_recording(trains());
  CloseLoop(visit, micro_batch, loops, x);
  if (!trains()) {
    const Var normed = model_.stack().Normed(visit.tape, visit.h);
    const Var sums = model_.SumsOf(visit.tape, normed, with.targets_N, with.options);
    AccumulateInto(stream_, sums_.losses, sums.value);
    return {};
  }
  // What earlier loops' visits read out is leaves here. By leaf: whose it is, and in which loop.
  std::vector<Var> leaves, of;
  std::vector<int> from;
  LanguageModel::Readouts readouts;
  for (int loop = 1; loop < loops; ++loop) {
    const LanguageModel::Readouts& theirs = At(micro_batch, loop).readouts;
    for (const Var& gate : theirs.gates) {
      readouts.gates.push_back(Leaf(visit.tape, gate, &of, &leaves));
    }
    for (const TokenLosses& losses : theirs.losses) {
      readouts.losses.push_back({Leaf(visit.tape, losses.loss_N, &of, &leaves),
                                 Leaf(visit.tape, losses.lse_N, &of, &leaves)});
    }
    from.resize(leaves.size(), loop);
  }
  const auto append = [](auto& to, const auto& more) {
    to.insert(to.end(), more.begin(), more.end());
  };
  append(readouts.gates, visit.readouts.gates);
  append(readouts.losses, visit.readouts.losses);
  const LanguageModel::Loss loss =
      model_.LossOf(visit.tape, visit.h, readouts, with.targets_N, with.options);
  AccumulateInto(stream_, sums_.losses, loss.sums.value);
  leaves.push_back(visit.previous);
  of.push_back(At(micro_batch, loops - 1).h);
  from.push_back(loops - 1);
  leaves.push_back(visit.in);
  std::vector<Tensor> gradients = visit.tape.Backward(model_.Seeds(loss, options_.z_loss), leaves);
  for (size_t i = 0; i < from.size(); ++i) {
    if (!gradients[i].defined()) continue;
    At(micro_batch, from[i]).seeds.push_back({of[i], std::move(gradients[i])});
  }
  return gradients.back();
}

Tensor ModelStage::BackwardInput(int micro_batch, int loop, const Tensor& dy) {
  const TraceRange range("backward");
  Visit& visit = At(micro_batch, loop);
  std::vector<Tape::Seed> seeds = std::exchange(visit.seeds, {});
  seeds.push_back({visit.out, dy});
  for (const Var& own : visit.auxiliary) {
    seeds.push_back({own, Tensor::Empty({1}, DType::kF64, stream_.device)});
    Fill(stream_, seeds.back().gradient, 1);
  }
  visit.tape.set_defer_weights(options_.defers_weights);
  const std::vector<Var> leaves = {visit.in, visit.previous};
  const std::vector<Tensor> gradients = visit.tape.Backward(std::move(seeds), leaves);
  if (gradients[1].defined()) {
    Visit& before = At(micro_batch, loop - 1);
    before.seeds.push_back({before.h, gradients[1]});
  }
  visit.weights = visit.tape.TakeDeferred();
  visit.in = visit.previous = visit.h = visit.out = {};
  visit.auxiliary.clear();
  visit.readouts = {};
  return gradients[0];
}

void ModelStage::BackwardWeight(int micro_batch, int loop) {
  const TraceRange range("backward weights");
  for (std::function<void()>& weight : At(micro_batch, loop).weights) {
    weight();
    weight = nullptr;  // and what it holds
  }
  visits_.erase({micro_batch, loop});
}

void ModelStage::SumDiagnostics(Communicator& pp) {
  if (diagnostics_ == nullptr || stream_.device.backend == Backend::kMeta) return;
  for (const MicroBatch& each : micro_batches_) {
    if (each.options.diagnostics == nullptr) continue;
    for (size_t loop = 0; loop < masses_.size(); ++loop) {
      std::vector<double> sums = LoopedStack::MassOverRanks(masses_[loop], each.options);
      ReduceScalars(pp, sums, {});
      diagnostics_->SetMass(static_cast<int64_t>(loop), sums);
    }
  }
}

}  // namespace lt2
