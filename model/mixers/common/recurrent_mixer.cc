#include "model/mixers/common/recurrent_mixer.h"

#include "kernels/l2_norm.h"
#include "kernels/rms_norm.h"
#include "kernels/short_conv.h"
#include "kernels/split_rms_norm.h"
#include "parallel/token_exchange.h"

namespace lt2 {

Var RecurrentRun::Finish(const ScanOutputs& out, int entry) const {
  if (state_ != nullptr) (*state_)[entry].CopyFrom(out.final_state_DGKV.value);
  return out.o_NGV;
}

Var RecurrentRun::Scan(Tape& tape, const ScanAdditiveInputs& in, double scale, int entry,
                       const Meanwhile& meanwhile) const {
  if (documents_ != nullptr) {
    return Finish(ScanAdditive(tape, in, scale, *documents_, final_states(), link(), meanwhile),
                  entry);
  }
  const Tensor& v = in.v_NGV.value;
  const Tensor o = Tensor::Empty(v.shape(), v.dtype(), v.device());
  ScanAdditiveStep(tape.stream(), {.q_BHK = in.q_NHK.value,
                                   .k_BHK = in.k_NHK.value,
                                   .v_BGV = v,
                                   .g_BG = in.g_NG.value,
                                   .g_BGK = in.g_NGK.value,
                                   .log_gamma_G = in.log_gamma_G,
                                   .state_BGKV = (*state_)[entry],
                                   .scale = scale,
                                   .o_BGV = o});
  meanwhile();
  return tape.Input(o);
}

Var RecurrentRun::Scan(Tape& tape, const ScanDeltaInputs& in, double scale, int entry,
                       const Meanwhile& meanwhile) const {
  if (documents_ != nullptr) {
    return Finish(ScanDelta(tape, in, scale, *documents_, final_states(), link(), meanwhile),
                  entry);
  }
  const Tensor& v = in.v_NGV.value;
  const Tensor o = Tensor::Empty(v.shape(), v.dtype(), v.device());
  ScanDeltaStep(tape.stream(), {.q_BHK = in.q_NHK.value,
                                .k_BHK = in.k_NHK.value,
                                .v_BGV = v,
                                .g_BG = in.g_NG.value,
                                .g_BGK = in.g_NGK.value,
                                .beta_BG = in.beta_NG.value,
                                .state_BGKV = (*state_)[entry],
                                .scale = scale,
                                .o_BGV = o});
  meanwhile();
  return tape.Input(o);
}

Var RecurrentRun::Scan(Tape& tape, const ScanMlstmInputs& in, double scale, int entry,
                       const Meanwhile& meanwhile) const {
  if (documents_ != nullptr) {
    const ScanMlstmOutputs out =
        ScanMlstm(tape, in, scale, *documents_, final_states(), link(), meanwhile);
    if (state_ != nullptr) {
      (*state_)[entry].CopyFrom(out.final_state_DHKW.value);
      (*state_)[entry + 1].CopyFrom(out.final_max_DH);
    }
    return out.o_NHV;
  }
  const Tensor& v = in.v_NHV.value;
  const Tensor o = Tensor::Empty(v.shape(), v.dtype(), v.device());
  ScanMlstmStep(tape.stream(), {.q_BHK = in.q_NHK.value,
                                .k_BHK = in.k_NHK.value,
                                .v_BHV = v,
                                .i_BH = in.i_NH.value,
                                .f_BH = in.f_NH.value,
                                .state_BHKW = (*state_)[entry],
                                .max_BH = (*state_)[entry + 1],
                                .scale = scale,
                                .o_BHV = o});
  meanwhile();
  return tape.Input(o);
}

Var RecurrentRun::Scan(Tape& tape, const SsdInputs& in, const SsdParams& params, int entry,
                       const Meanwhile& meanwhile) const {
  if (documents_ == nullptr) {
    const Var o = SsdStep(tape, in, params, (*state_)[entry]);
    meanwhile();
    return o;
  }
  return Finish(Ssd(tape, in, params, *documents_, final_states(), link(), meanwhile), entry);
}

void RecurrentRun::RememberTail(Tape& tape, const Var& x_NC, int entry) const {
  if (state_ == nullptr) return;
  ShortConvTail(tape.stream(),
                {.x_NC = x_NC.value, .documents = *documents_, .tail_out_DPC = (*state_)[entry]});
}

Var RecurrentRun::Conv(Tape& tape, const Var& x_NC, Param& w_CW, Param* bias_C, bool silu,
                       int entry, const Meanwhile& meanwhile) const {
  if (documents_ == nullptr) {
    const Tensor y = Tensor::Empty(x_NC.shape(), x_NC.value.dtype(), x_NC.value.device());
    ShortConvStep(tape.stream(), {.x_BC = x_NC.value,
                                  .w_CW = w_CW.value,
                                  .bias_C = bias_C != nullptr ? bias_C->value : Tensor(),
                                  .silu = silu,
                                  .tail_BPC = (*state_)[entry],
                                  .y_BC = y});
    meanwhile();
    return tape.Input(y);
  }
  RememberTail(tape, x_NC, entry);
  const int64_t reach = w_CW.value.dim(1) - 1;
  if (shard_ == nullptr || reach == 0) {
    const Var y = ShortConv(tape, x_NC, w_CW, bias_C, silu, *documents_);
    meanwhile();
    return y;
  }
  const Var context = LeftContext(tape, std::span(&x_NC, 1), *shard_, reach, meanwhile)[0];
  const Var y = ShortConv(tape, context, w_CW, bias_C, silu, shard_->context(reach));
  return OwnTokens(tape, y, *shard_, reach);
}

std::array<Var, kQkv> RecurrentRun::Conv(Tape& tape, const std::array<Var, kQkv>& x_NC,
                                         const std::array<Param*, kQkv>& w_CW, int64_t head_dim,
                                         double eps, int first_entry,
                                         const Meanwhile& meanwhile) const {
  if (documents_ != nullptr) {
    for (int p = 0; p < kQkv; ++p) RememberTail(tape, x_NC[p], first_entry + p);
    const int64_t reach = w_CW[0]->value.dim(1) - 1;
    if (shard_ == nullptr || reach == 0) {
      const std::array<Var, kQkv> y = QkvConv(tape, x_NC, w_CW, head_dim, eps, *documents_);
      meanwhile();
      return y;
    }
    const std::vector<Var> context = LeftContext(tape, x_NC, *shard_, reach, meanwhile);
    std::array<Var, kQkv> y = QkvConv(tape, {context[0], context[1], context[2]}, w_CW, head_dim,
                                      eps, shard_->context(reach));
    for (Var& part : y) part = OwnTokens(tape, part, *shard_, reach);
    return y;
  }
  const auto step = [&](int p) {
    return Conv(tape, x_NC[p], *w_CW[p], nullptr, /*silu=*/true, first_entry + p);
  };
  const std::array<Var, kQkv> y = {L2Norm(tape, step(0), head_dim, eps),
                                   L2Norm(tape, step(1), head_dim, eps), step(2)};
  meanwhile();
  return y;
}

Var RecurrentRun::Normed(Tape& tape, const Var& x_NC, Param& w_C, double eps,
                         int64_t groups) const {
  const int ranks = heads_ != nullptr ? heads_->size() : 1;
  if (groups < ranks) {
    return SplitRmsNorm(tape, x_NC, w_C, eps, *heads_, static_cast<int>(ranks / groups));
  }
  return RmsNorm(tape, x_NC, w_C, eps, x_NC.value.dim(1) / (groups / ranks));
}

MixerOutput RecurrentMixer::Forward(Tape& tape, const Var& x_ND, const MixerContext& context) {
  return {.y_ND = Mix(tape, x_ND, RecurrentRun(context))};
}

Tensor RecurrentMixer::Step(Stream& stream, const Tensor& x_BD, MixerState& state,
                            const StepContext& context) {
  Tape tape(stream);
  tape.set_recording(false);
  return Mix(tape, tape.Input(x_BD), RecurrentRun(state, context)).value;
}

}  // namespace lt2
