#include "model/language_model.h"

#include "kernels/embedding.h"
#include "kernels/gemm.h"
#include "kernels/head_loss.h"
#include "kernels/rms_norm.h"
#include "model/init.h"

namespace lt2 {

LanguageModel::LanguageModel(const ModelConfig& config)
    : config_(config),
      embed_(ParamScope(params_).Add("embed.weight", {config.vocab, config.width},
                                     ProjectionInit(config.width))),
      stack_(std::make_unique<LoopedStack>(config, ParamScope(params_))),
      norm_(ParamScope(params_).Add("norm.weight", {config.width}, {.kind = Init::Kind::kOnes},
                                    /*decay=*/false)) {
  if (!config.tie_embeddings) {
    head_ = &ParamScope(params_).Add("head.weight", {config.vocab, config.width},
                                     ProjectionInit(config.width));
  }
}

std::vector<int> LanguageModel::UsesPerMicroBatch() const {
  std::vector<int> uses;
  for (const Param* param : params_.all()) {
    if (param == &embed_) {
      uses.push_back(head_ == nullptr ? 2 : 1);  // a tied head uses it again
    } else if (param == &norm_ || param == head_) {
      uses.push_back(1);
    } else {
      uses.push_back(static_cast<int>(config_.loops) * params_.Sites(param));
    }
  }
  return uses;
}

LanguageModel::Loss LanguageModel::Forward(Tape& tape, const Tensor& ids_N, const Tensor& targets_N,
                                           const Documents& documents,
                                           const ForwardOptions& options) {
  LoopDiagnostics* diagnostics = options.diagnostics;
  if (diagnostics != nullptr) diagnostics->loss.assign(config_.loops, 0.0);
  const LoopedStack::Readout readout = [&](int64_t loop, const Tensor& h_ND) {
    Tape silent(tape.stream());
    silent.set_recording(false);
    const Var normed = RmsNorm(silent, silent.Input(h_ND), norm_, config_.norm_eps);
    const Tensor sums = HeadLoss(silent, normed, head_weight(), targets_N).value;
    if (!sums.on_host()) return;
    const double* sum = sums.data<double>();
    diagnostics->loss[loop] = sum[kCountedSum] > 0 ? sum[kLossSum] / sum[kCountedSum] : 0;
  };
  const LoopedStack::Output out =
      stack_->Forward(tape, Embedding(tape, ids_N, embed_), documents, options,
                      diagnostics != nullptr ? readout : nullptr);
  const Var normed = RmsNorm(tape, out.h_ND, norm_, config_.norm_eps);
  return {.sums = HeadLoss(tape, normed, head_weight(), targets_N),
          .auxiliary = out.auxiliary_losses};
}

std::vector<Tape::Seed> LanguageModel::Seeds(const Loss& loss, double z_loss) {
  const Device device = loss.sums.value.device();
  const double seed[kHeadLossSums] = {1, z_loss, 0};
  std::vector<Tape::Seed> seeds = {
      {loss.sums, Tensor::FromHost(seed, {kHeadLossSums}, DType::kF64, device)}};
  for (const Var& auxiliary : loss.auxiliary) {
    seeds.push_back({auxiliary, Tensor::FromHost(std::span(seed, 1), {1}, DType::kF64, device)});
  }
  return seeds;
}

Tensor LanguageModel::Hidden(Stream& stream, const Tensor& ids_N, const Documents& documents,
                             const ForwardOptions& options) {
  Tape tape(stream);
  tape.set_recording(false);
  const Var h = stack_->Forward(tape, Embedding(tape, ids_N, embed_), documents, options).h_ND;
  return RmsNorm(tape, h, norm_, config_.norm_eps).value;
}

Tensor LanguageModel::Logits(Stream& stream, const Tensor& hidden_ND) {
  const Tensor w = head_weight().value;
  Tensor logits = Tensor::Empty({hidden_ND.dim(0), config_.vocab}, w.dtype(), w.device());
  Gemm(stream, {.a = hidden_ND, .b = w, .c = logits, .transpose_b = true});
  return logits;
}

std::vector<MixerState> LanguageModel::MakeStates(int64_t sequences, int64_t capacity, DType dtype,
                                                  Device device) const {
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
  const Tensor h = stack_->Step(stream, Embedding(tape, ids_B, embed_).value, states, context);
  return Logits(stream, RmsNorm(tape, tape.Input(h), norm_, config_.norm_eps).value);
}

double LanguageModel::FlopsPerToken(int64_t sequence) const {
  const double head = 2 * static_cast<double>(config_.vocab) * static_cast<double>(config_.width);
  return stack_->FlopsPerToken(sequence) + head;
}

}  // namespace lt2
