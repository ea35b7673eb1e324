#include "model/language_model.h"

#include <algorithm>
#include <array>

#include "kernels/add_bias.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/exit_loss.h"
#include "kernels/exit_select.h"
#include "kernels/gemm.h"
#include "kernels/linear.h"
#include "model/init.h"

namespace lt2 {

namespace {

// The tensor-parallel group, if there is anybody else in it.
TensorShard* GroupOf(const ForwardOptions& options) {
  return options.tensor != nullptr && options.tensor->size() > 1 ? options.tensor : nullptr;
}

// The mean of what is counted on all ranks that share the row.
double MeanOf(double sum, double counted, ContextShard* shard) {
  std::array of_row = {sum, counted};
  if (shard != nullptr) shard->SumOverRow(of_row);
  return of_row[1] > 0 ? of_row[0] / of_row[1] : 0;
}

double MeanOf(const Tensor& loss_N, const Tensor& targets_N, ContextShard* shard) {
  double sum = 0, counted = 0;
  const std::vector<double> losses = loss_N.ToDoubles(), targets = targets_N.ToDoubles();
  for (size_t i = 0; i < losses.size(); ++i) {
    sum += losses[i];
    counted += targets[i] >= 0;
  }
  return MeanOf(sum, counted, shard);
}

double MeanOf(const Tensor& sums, ContextShard* shard) {
  const std::vector<double> sum = sums.ToDoubles();
  return MeanOf(sum[kLossSum], sum[kCountedSum], shard);
}

}  // namespace

LanguageModel::LanguageModel(const ModelConfig& config, const TensorSplit& split,
                             const StagePlace& place)
    : config_(config),
      embed_(place.first() ? &ParamScope(params_).Add("embed.weight", {config.vocab, config.width},
                                                      ProjectionInit(config.width), /*decay=*/true,
                                                      SplitRows(split.ranks))
                           : nullptr),
      stack_(std::make_unique<LoopedStack>(config, ParamScope(params_), split, place)) {
  if (!place.first()) return;
  const ParamScope root(params_);
  if (!config.tie_embeddings) {
    head_ = &root.Add("head.weight", {config.vocab, config.width}, ProjectionInit(config.width),
                      /*decay=*/true, SplitRows(split.ranks));
  }
  if (config.exit_gate) {
    CHECK_GE(config.loops, 2) << "an exit gate needs loops to choose among";
    const ParamScope gate = root.Sub("exit_gate");
    gate_weight_ = &gate.Add("weight", {1, config.width}, ProjectionInit(config.width),
                             /*decay=*/true, BetweenLayers(split));
    gate_bias_ =
        &gate.Add("bias", {1}, {.kind = Init::Kind::kZeros}, /*decay=*/false, BetweenLayers(split));
  }
}

std::vector<int> LanguageModel::UsesPerMicroBatch() const {
  const int loops = static_cast<int>(config_.loops), heads = config_.exit_gate ? loops : 1;
  std::vector<int> uses;
  for (const Param* param : params_.all()) {
    if (param == embed_) {
      uses.push_back(head_ == nullptr ? 1 + heads : 1);  // a tied head uses it again
    } else if (param == head_) {
      uses.push_back(heads);
    } else if (param == stack_->norm()) {
      uses.push_back(config_.loop_norm ? loops : heads);
    } else if (param == gate_weight_ || param == gate_bias_) {
      uses.push_back(loops - 1);
    } else {
      uses.push_back(loops * params_.Sites(param));
    }
  }
  return uses;
}

LanguageModel::Loss LanguageModel::Forward(Tape& tape, const Tensor& ids_N, const Tensor& targets_N,
                                           const Documents& documents, ForwardOptions options) {
  options.tensor = GroupOf(options);
  Readouts readouts;
  // Right after the loop, so that backward holds the gradient of one loop's readout at a time.
  const LoopedStack::Readout readout = [&](int64_t loop, const Var& h_ND) {
    ReadOut(tape, h_ND, loop, targets_N, options, &readouts);
  };
  const LoopedStack::Output out =
      stack_->Forward(tape, Embedded(tape, ids_N, options), documents, options, readout);
  Loss loss = LossOf(tape, out.h_ND, readouts, targets_N, options);
  loss.auxiliary = out.auxiliary_losses;
  return loss;
}

void LanguageModel::ReadOut(Tape& tape, const Var& h_ND, int64_t loop, const Tensor& targets_N,
                            const ForwardOptions& options, Readouts* readouts) {
  LoopDiagnostics* const diagnostics = options.diagnostics;
  TensorShard* const tensor = options.tensor;
  if (config_.exit_gate) {
    HeadLossOptions head{.link = tensor};
    head.keep_at_most /= config_.loops;
    const Var normed = stack_->Normed(tape, h_ND);
    if (loop + 1 < config_.loops) {
      readouts->gates.push_back(GatherShares(tape, Gate(tape, normed), tensor));
    }
    readouts->losses.push_back(
        HeadLossPerToken(tape, EnterLayer(tape, normed, tensor), head_weight(), targets_N, head));
    const Tensor& loss_N = readouts->losses.back().loss_N.value;
    if (diagnostics == nullptr || loss_N.on_meta()) return;
    diagnostics->loss[loop] = MeanOf(loss_N, targets_N, options.shard);
  } else if (diagnostics != nullptr) {
    Tape silent(tape.stream());
    silent.set_recording(false);
    const Var normed = stack_->Normed(silent, silent.Input(h_ND.value));
    const Tensor sums = SumsOf(silent, normed, targets_N, options).value;
    if (!sums.on_meta()) diagnostics->loss[loop] = MeanOf(sums, options.shard);
  }
}

LanguageModel::Loss LanguageModel::LossOf(Tape& tape, const Var& h_ND, const Readouts& readouts,
                                          const Tensor& targets_N, const ForwardOptions& options) {
  if (config_.exit_gate) {
    return {.sums = ExitLoss(tape, readouts.gates, readouts.losses, targets_N), .auxiliary = {}};
  }
  Loss loss;
  if (options.z_loss) {
    loss.z_loss = *options.z_loss;
    loss.seed = SeedOfSums(tape.device(), loss.z_loss);
  }
  loss.sums = HeadLoss(tape, EnterLayer(tape, stack_->Normed(tape, h_ND), options.tensor),
                       head_weight(), targets_N, {.dsums = loss.seed, .link = options.tensor});
  return loss;
}

Var LanguageModel::SumsOf(Tape& tape, const Var& normed_ND, const Tensor& targets_N,
                          const ForwardOptions& options) {
  return HeadLoss(tape, EnterLayer(tape, normed_ND, options.tensor), head_weight(), targets_N,
                  {.link = options.tensor});
}

Var LanguageModel::Embedded(Tape& tape, const Tensor& ids_N, const ForwardOptions& options) {
  if (options.before_params) options.before_params(1);
  return LeaveLayer(tape, Embedding(tape, ids_N, *embed_), options.tensor);
}

Var LanguageModel::Gate(Tape& tape, const Var& normed_ND) {
  return AddBias(tape, Linear(tape, normed_ND, *gate_weight_), *gate_bias_);
}

bool LanguageModel::has_auxiliary_losses() const {
  return std::ranges::any_of(stack_->blocks(), [](const std::unique_ptr<Block>& block) {
    return block->mixer().has_auxiliary_loss();
  });
}

int64_t LanguageModel::loss_sums() const {
  return config_.exit_gate ? kExitProbabilitySums + config_.loops : int64_t{kHeadLossSums};
}

// Seeds are filled where they are, so that a recorded step makes them too.
Tensor LanguageModel::SeedOfSums(Device device, double z_loss) const {
  Stream stream{.device = device};
  const Tensor seed = Tensor::Zeros({loss_sums()}, DType::kF64, device);
  const auto set = [&](int64_t at, double value) {
    if (value != 0) Fill(stream, seed.Rows(at, at + 1), value);
  };
  set(kLossSum, 1);
  set(kSquaredLseSum, z_loss);
  if (config_.exit_gate) set(kExitEntropySum, -config_.exit_entropy);
  return seed;
}

std::vector<Tape::Seed> LanguageModel::Seeds(const Loss& loss, double z_loss) const {
  CHECK(!loss.seed.defined() || loss.z_loss == z_loss) << "the forward was told another z_loss";
  Stream stream{.device = loss.sums.value.device()};
  std::vector<Tape::Seed> seeds = {
      {loss.sums, loss.seed.defined() ? loss.seed : SeedOfSums(stream.device, z_loss)}};
  for (const Var& auxiliary : loss.auxiliary) {
    const Tensor one = Tensor::Empty({1}, DType::kF64, stream.device);
    Fill(stream, one, 1);
    seeds.push_back({auxiliary, one});
  }
  return seeds;
}

void LanguageModel::set_exit_threshold(double threshold) {
  CHECK(threshold >= 1 || config_.exit_gate) << "there is no exit gate";
  exit_threshold_ = threshold;
}

LoopedStack::Readout LanguageModel::ExitReadout(Tape& tape, Tensor* leaving_ND) {
  if (exit_threshold_ >= 1) return {};
  return [this, &tape, leaving_ND, left_N = Tensor()](int64_t loop, const Var& h_ND) mutable {
    const Var normed = stack_->Normed(tape, h_ND);
    const Tensor& h = normed.value;
    if (loop == 0) {
      left_N = Tensor::Empty({h.dim(0)}, AccumulatorOf(h.dtype()), h.device());
      Fill(tape.stream(), left_N, 1);
      *leaving_ND = Tensor::Empty(h.shape(), h.dtype(), h.device());
    }
    const bool last = loop + 1 == config_.loops;
    ExitSelect(tape.stream(), {.h_ND = h,
                               .gate_N = last ? Tensor() : Gate(tape, normed).value,
                               .threshold = exit_threshold_,
                               .left_N = left_N,
                               .out_ND = *leaving_ND});
  };
}

Tensor LanguageModel::Evaluate(Stream& stream, const Tensor& ids_N, const Tensor& targets_N,
                               const Documents& documents, const ForwardOptions& options) {
  Tape tape(stream);
  tape.set_recording(false);
  ForwardOptions head = options;
  head.tensor = GroupOf(options);
  const Var hidden = tape.Input(Hidden(stream, ids_N, documents, options));
  return SumsOf(tape, hidden, targets_N, head).value;
}

Tensor LanguageModel::Hidden(Stream& stream, const Tensor& ids_N, const Documents& documents,
                             ForwardOptions options) {
  options.tensor = GroupOf(options);
  Tape tape(stream);
  tape.set_recording(false);
  Tensor leaving_ND;
  const Var h = stack_
                    ->Forward(tape, Embedded(tape, ids_N, options), documents, options,
                              ExitReadout(tape, &leaving_ND))
                    .h_ND;
  return leaving_ND.defined() ? leaving_ND : stack_->Normed(tape, h).value;
}

Tensor LanguageModel::Logits(Stream& stream, const Tensor& hidden_ND) {
  const Tensor w = head_weight().value;
  Tensor logits = Tensor::Empty({hidden_ND.dim(0), config_.vocab}, w.dtype(), w.device());
  Gemm(stream, {.a = hidden_ND, .b = w, .c = logits, .transpose_b = true});
  return logits;
}

std::vector<MixerState> LanguageModel::MakeStates(int64_t sequences, int64_t capacity, DType dtype,
                                                  Device device) const {
  CHECK(embed_ != nullptr && embed_->held == Box::Whole(embed_->spec.shape))
      << "decoding is for one rank";
  std::vector<MixerState> states;
  for (int64_t loop = 0; loop < config_.loops; ++loop) {
    for (const auto& block : stack_->blocks()) {
      MixerState state;
      for (const StateEntry& entry : block->mixer().StateSpec(sequences, capacity, dtype)) {
        state.push_back(Tensor::Zeros(entry.shape, entry.dtype, device));
      }
      states.push_back(std::move(state));
    }
  }
  return states;
}

Tensor LanguageModel::Step(Stream& stream, const Tensor& ids_B, const StepContext& context,
                           std::vector<MixerState>& states) {
  Tape tape(stream);
  tape.set_recording(false);
  Tensor leaving_BD;
  const Tensor h = stack_->Step(stream, Embedding(tape, ids_B, *embed_).value, states, context,
                                ExitReadout(tape, &leaving_BD));
  return Logits(stream,
                leaving_BD.defined() ? leaving_BD : stack_->Normed(tape, tape.Input(h)).value);
}

double LanguageModel::HeadFlopsPerToken() const {
  if (!is_first_stage()) return 0;
  const double width = static_cast<double>(config_.width),
               loops = static_cast<double>(config_.loops);
  const double head = 2 * static_cast<double>(config_.vocab) * width;
  return config_.exit_gate ? loops * head + (loops - 1) * 2 * width : head;
}

double LanguageModel::FlopsPerToken(int64_t sequence) const {
  return stack_->FlopsPerToken(sequence) + HeadFlopsPerToken();
}

}  // namespace lt2
