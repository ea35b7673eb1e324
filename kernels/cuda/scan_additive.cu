#include "kernels/cuda/scan_additive_gradients.cuh"
#include "kernels/cuda/scan_step.cuh"
#include "kernels/scan_additive.h"

namespace lt2::cuda {
namespace {

template <class T, class Args>
AdditiveInputs<T> InputsOf(const Args& a) {
  return {.shape = ScanShapeOf(a.q_NHK, a.v_NGV, a.documents),
          .q_NHK = Data<T>(a.q_NHK),
          .k_NHK = Data<T>(a.k_NHK),
          .v_NGV = Data<T>(a.v_NGV),
          .g_NG = DataOrNull<float>(a.g_NG),
          .g_NGK = DataOrNull<float>(a.g_NGK),
          .log_gamma_G = DataOrNull<float>(a.log_gamma_G),
          .scale = static_cast<float>(a.scale)};
}

template <class T>
struct Workspace {
  ScanOperands<T> operands;
  T* states;  // where the backward wants none
};

template <class T, Decay kDecay>
void Forward(const Stream& stream, const ScanAdditiveForwardArgs& a) {
  AdditiveInputs<T> in = InputsOf<T>(a);
  const ScanShape& n = in.shape;
  const bool outputs = a.o_NGV.defined();
  if (!outputs) in.shape.which = OneOrAll(a.final_DGKV, Which::kLast);
  const int64_t chunks = a.documents.chunk_capacity();
  const Workspace<T> scratch = CarveScratch(stream, [&](Carver& carver) {
    Workspace<T> parts{.operands = TakeAdditiveOperands<T>(carver, n, chunks, outputs)};
    const bool states = outputs && !a.states_CGKV.defined();
    parts.states = states ? carver.Take<T>(chunks * n.heads * n.k * n.v) : nullptr;
    return parts;
  });
  T* states = a.states_CGKV.defined() ? Data<T>(a.states_CGKV) : scratch.states;
  const ValueRows<T> values{.x_NGV = in.v_NGV, .heads = n.heads, .v = n.v};
  LaunchPrepareAdditive<T, kDecay>(stream, "scan_additive prepare",
                                   {.in = in, .operands = scratch.operands}, chunks);
  LaunchForwardStates<T, /*kDelta=*/false>(stream, "scan_additive states",
                                           {.shape = n,
                                            .operands = scratch.operands,
                                            .initial = InitialStates(a.initial_DGKV),
                                            .final = LastStates(a.final_DGKV),
                                            .states_CGKV = states,
                                            .values = values});
  if (!outputs) return;
  LaunchChunkOutputs<T, Outputs::kRead>(stream, "scan_additive outputs",
                                        {.shape = n,
                                         .rows = scratch.operands.q_read,
                                         .attention = scratch.operands.attention,
                                         .states_CGKV = states,
                                         .values = values,
                                         .o_NGV = Data<T>(a.o_NGV)},
                                        chunks);
}

template <class T, Decay kDecay>
void Backward(const Stream& stream, const ScanAdditiveBackwardArgs& a) {
  AdditiveInputs<T> in = InputsOf<T>(a);
  const ScanShape& n = in.shape;
  const bool keys = AnyWanted({&a.dq_NHK, &a.dk_NHK, &a.dg_NG, &a.dg_NGK});
  if (!keys && !a.dv_NGV.to.defined()) {
    in.shape.which = OneOrAll(a.dinitial_DGKV.to, Which::kFirst);
  }
  const int64_t chunks = a.documents.chunk_capacity();
  const auto operands = CarveScratch(
      stream, [&](Carver& carver) { return TakeAdditiveOperands<T>(carver, n, chunks); });
  const ValueRows<T> d_o{.x_NGV = DataOrNull<T>(a.do_NGV), .heads = n.heads, .v = n.v};
  T* dstates = Data<T>(a.dstates_CGKV);
  LaunchPrepareAdditive<T, kDecay>(stream, "scan_additive prepare",
                                   {.in = in, .operands = operands}, chunks);
  LaunchReverseStates<T, /*kDelta=*/false>(stream, "scan_additive reverse states",
                                           {.shape = n,
                                            .operands = operands,
                                            .dfinal = LastStates(a.dfinal_DGKV),
                                            .dinitial = InitialStates(a.dinitial_DGKV.to),
                                            .accumulate = a.dinitial_DGKV.accumulate,
                                            .dstates_CGKV = dstates,
                                            .d_o = d_o});
  if (a.dv_NGV.to.defined()) {
    LaunchChunkOutputs<T, Outputs::kTransposed>(stream, "scan_additive dv",
                                                {.shape = n,
                                                 .rows = operands.k_write,
                                                 .attention = operands.attention,
                                                 .states_CGKV = dstates,
                                                 .values = d_o,
                                                 .o_NGV = Data<T>(a.dv_NGV.to),
                                                 .add = a.dv_NGV.accumulate},
                                                chunks);
  }
  if (!keys) return;
  AdditiveGradients<T> data{.in = in,
                            .states_CGKV = Data<T>(a.states_CGKV),
                            .dstates_CGKV = dstates,
                            .values = {.x_NGV = in.v_NGV, .heads = n.heads, .v = n.v},
                            .d_o = d_o,
                            .dq_NHK = Gradient<T>(a.dq_NHK),
                            .dk_NHK = Gradient<T>(a.dk_NHK),
                            .dg_NG = Gradient<float>(a.dg_NG),
                            .dg_NGK = Gradient<float>(a.dg_NGK)};
  LaunchAdditiveGradients<T, kDecay>(stream, "scan_additive gradients", data, chunks);
}

template <class T>
struct Step {
  StepPlace place;
  const T *q_BHK, *k_BHK, *v_BGV;
  const float *g_BG, *g_BGK, *log_gamma_G;
  float scale;
  float* state_BGKV;
  T* o_BGV;
};

template <class T>
__global__ void __launch_bounds__(kStepThreads) StepKernel(Step<T> data) {
  __shared__ StepKeys keys;
  __shared__ float sums[kStepThreads];
  StepColumns columns(data.place, data.state_BGKV);
  keys.Load(data.place, data.q_BHK, data.k_BHK, data.g_BG, data.g_BGK, data.log_gamma_G);
  __syncthreads();
  const float v = columns.inside ? Get(data.v_BGV, columns.at_value) : 0;
  float o = 0;
  columns.ForEach([&](int d, float& s) {
    s = keys.decay[d] * s + keys.k[d] * v;
    o += s * keys.q[d];
  });
  columns.Store();
  o = columns.Sum(o, sums);
  if (columns.inside && columns.first_row == 0) {
    Put(data.o_BGV, columns.at_value, data.scale * o);
  }
}

}  // namespace

void ScanAdditiveForward(Stream& stream, const ScanAdditiveForwardArgs& a) {
  if (a.documents.tokens() == 0) return;
  DispatchType("scan_additive", a.v_NGV.dtype(), [&]<class T>() {
    if (a.g_NGK.defined()) {
      Forward<T, Decay::kChannels>(stream, a);
    } else {
      Forward<T, Decay::kHead>(stream, a);
    }
  });
}

void ScanAdditiveBackward(Stream& stream, const ScanAdditiveBackwardArgs& a) {
  if (a.documents.tokens() == 0) return;
  DispatchType("scan_additive", a.v_NGV.dtype(), [&]<class T>() {
    if (a.g_NGK.defined()) {
      Backward<T, Decay::kChannels>(stream, a);
    } else {
      Backward<T, Decay::kHead>(stream, a);
    }
  });
}

void ScanAdditiveStep(Stream& stream, const ScanAdditiveStepArgs& a) {
  DispatchType("scan_additive_step", a.v_BGV.dtype(), [&]<class T>() {
    const Step<T> data{.place = StepPlaceOf(a.q_BHK, a.v_BGV, a.v_BGV.dim(2)),
                       .q_BHK = Data<T>(a.q_BHK),
                       .k_BHK = Data<T>(a.k_BHK),
                       .v_BGV = Data<T>(a.v_BGV),
                       .g_BG = DataOrNull<float>(a.g_BG),
                       .g_BGK = DataOrNull<float>(a.g_BGK),
                       .log_gamma_G = DataOrNull<float>(a.log_gamma_G),
                       .scale = static_cast<float>(a.scale),
                       .state_BGKV = Data<float>(a.state_BGKV),
                       .o_BGV = Data<T>(a.o_BGV)};
    StepKernel<T><<<StepGrid(data.place, a.v_BGV.dim(0)), kStepThreads, 0, Handle(stream)>>>(data);
    CheckLaunch("scan_additive_step");
  });
}

}  // namespace lt2::cuda
