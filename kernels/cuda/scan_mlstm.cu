#include "kernels/cuda/scan_additive_gradients.cuh"
#include "kernels/cuda/scan_step.cuh"
#include "kernels/scan_mlstm.h"

namespace lt2::cuda {
namespace {

struct Maxes {
  ScanShape shape;
  const float *i_NH, *f_NH;
  StatesOf initial, final;  // none: zero, not wanted
  float* maxes_CH;
};

// The m that each chunk begins with. A warp has a head of a document, chunk after chunk.
__global__ void __launch_bounds__(32) MaxesKernel(Maxes data) {
  __shared__ MlstmWeights weights;
  const ScanShape& n = data.shape;
  const int head = blockIdx.x, document = n.Document(blockIdx.y);
  const int first = n.first_chunks[document], end = n.first_chunks[document + 1];
  const float* initial = data.initial.At(n, document, head, 1);
  float m = initial != nullptr && first < end ? *initial : 0;
  for (int chunk = first; chunk < end; ++chunk) {
    const ChunkPlace place = PlaceOf(n.chunks, chunk);
    const int64_t at = int64_t{place.token} * n.heads + head;
    if (threadIdx.x == 0) data.maxes_CH[int64_t{chunk} * n.heads + head] = m;
    weights.Load<float>(data.i_NH + at, data.f_NH + at, n.heads, place.rows, m);
    __syncthreads();
    m = weights.out;
    __syncthreads();
  }
  float* final = data.final.At(n, document, head, 1);
  if (final != nullptr && threadIdx.x == 0) *final = m;
}

template <class T, class Args>
AdditiveInputs<T> InputsOf(const Args& a, const float* maxes_CH) {
  return {.shape = ScanShapeOf(a.q_NHK, a.v_NHV, a.documents, /*extra=*/1),
          .q_NHK = Data<T>(a.q_NHK),
          .k_NHK = Data<T>(a.k_NHK),
          .v_NGV = Data<T>(a.v_NHV),
          .gates = {Data<float>(a.i_NH), Data<float>(a.f_NH), maxes_CH},
          .scale = static_cast<float>(a.scale)};
}

template <class T>
struct ForwardScratch {
  ScanOperands<T> operands;
  float* floor;
  T* states;  // where the backward wants none, like the maxes
  float* maxes;
};

template <class T>
void Forward(const Stream& stream, const ScanMlstmForwardArgs& a) {
  AdditiveInputs<T> in = InputsOf<T>(a, nullptr);
  const ScanShape& n = in.shape;
  const bool outputs = a.o_NHV.defined();
  if (!outputs) in.shape.which = OneOrAll(a.final_DHKW, Which::kLast);
  const int64_t chunks = a.documents.chunk_capacity(), items = chunks * n.heads;
  const bool saves = a.states_CHKW.defined();
  const ForwardScratch<T> scratch = CarveScratch(stream, [&](Carver& carver) {
    ForwardScratch<T> parts{.operands = TakeAdditiveOperands<T>(carver, n, chunks, outputs)};
    parts.floor = carver.Take<float>(items * kPanel);
    parts.states = outputs && !saves ? carver.Take<T>(items * n.k * n.width) : nullptr;
    parts.maxes = carver.Take<float>(saves ? 0 : items);
    return parts;
  });
  T* states = saves ? Data<T>(a.states_CHKW) : scratch.states;
  float* maxes = saves ? Data<float>(a.maxes_CH) : scratch.maxes;
  in.gates.maxes_CH = maxes;

  const dim3 grid(n.heads, n.Count());
  MaxesKernel<<<grid, 32, 0, Handle(stream)>>>({.shape = n,
                                                .i_NH = in.gates.i_NH,
                                                .f_NH = in.gates.f_NH,
                                                .initial = InitialStates(a.initial_max_DH),
                                                .final = LastStates(a.final_max_DH),
                                                .maxes_CH = maxes});
  CheckLaunch("scan_mlstm maxes");
  LaunchPrepareAdditive<T, Decay::kMlstm>(
      stream, "scan_mlstm prepare",
      {.in = in, .operands = scratch.operands, .rows = {.floor = scratch.floor}}, chunks);
  const ValueRows<T> values{.x_NGV = in.v_NGV, .heads = n.heads, .v = n.v, .widened = true};
  LaunchForwardStates<T, /*kDelta=*/false>(stream, "scan_mlstm states",
                                           {.shape = n,
                                            .operands = scratch.operands,
                                            .initial = InitialStates(a.initial_DHKW),
                                            .final = LastStates(a.final_DHKW),
                                            .states_CGKV = states,
                                            .values = values});
  if (!outputs) return;
  LaunchChunkOutputs<T, Outputs::kNormalised>(stream, "scan_mlstm outputs",
                                              {.shape = n,
                                               .rows = scratch.operands.q_read,
                                               .attention = scratch.operands.attention,
                                               .states_CGKV = states,
                                               .values = values,
                                               .o_NGV = Data<T>(a.o_NHV),
                                               .floor = scratch.floor,
                                               .den_NG = DataOrNull<float>(a.den_NH)},
                                              chunks);
}

template <class T>
struct BackwardScratch {
  ScanOperands<T> operands;
  float *inverse, *dden;
};

template <class T>
void Backward(const Stream& stream, const ScanMlstmBackwardArgs& a) {
  AdditiveInputs<T> in = InputsOf<T>(a, Data<float>(a.maxes_CH));
  const ScanShape& n = in.shape;
  const bool inputs = AnyWanted({&a.dq_NHK, &a.dk_NHK, &a.dv_NHV, &a.di_NH, &a.df_NH});
  if (!inputs) in.shape.which = OneOrAll(a.dinitial_DHKW.to, Which::kFirst);
  const int64_t chunks = a.documents.chunk_capacity(), items = chunks * n.heads;
  const BackwardScratch<T> scratch = CarveScratch(stream, [&](Carver& carver) {
    BackwardScratch<T> parts{.operands = TakeAdditiveOperands<T>(carver, n, chunks)};
    parts.inverse = carver.Take<float>(items * kPanel);
    parts.dden = carver.Take<float>(items * kPanel);
    return parts;
  });
  T* dstates = Data<T>(a.dstates_CHKW);
  LaunchPrepareAdditive<T, Decay::kMlstm>(stream, "scan_mlstm prepare",
                                          {.in = in,
                                           .operands = scratch.operands,
                                           .rows = {.inverse = scratch.inverse,
                                                    .dden = scratch.dden,
                                                    .do_NHV = DataOrNull<T>(a.do_NHV),
                                                    .o_NHV = Data<T>(a.o_NHV),
                                                    .den_NH = Data<float>(a.den_NH)}},
                                          chunks);
  // The gradient of [num, den].
  const ValueRows<T> dy{.x_NGV = DataOrNull<T>(a.do_NHV),
                        .heads = n.heads,
                        .v = n.v,
                        .widened = true,
                        .scale = scratch.inverse,
                        .last = scratch.dden};
  LaunchReverseStates<T, /*kDelta=*/false>(stream, "scan_mlstm reverse states",
                                           {.shape = n,
                                            .operands = scratch.operands,
                                            .dfinal = LastStates(a.dfinal_DHKW),
                                            .dinitial = InitialStates(a.dinitial_DHKW.to),
                                            .accumulate = a.dinitial_DHKW.accumulate,
                                            .dstates_CGKV = dstates,
                                            .d_o = dy});
  if (!inputs) return;
  if (a.dv_NHV.to.defined()) {
    LaunchChunkOutputs<T, Outputs::kTransposed>(stream, "scan_mlstm dv",
                                                {.shape = n,
                                                 .rows = scratch.operands.k_write,
                                                 .attention = scratch.operands.attention,
                                                 .states_CGKV = dstates,
                                                 .values = dy,
                                                 .o_NGV = Data<T>(a.dv_NHV.to),
                                                 .add = a.dv_NHV.accumulate},
                                                chunks);
  }
  const AdditiveGradients<T> data{
      .in = in,
      .states_CGKV = Data<T>(a.states_CHKW),
      .dstates_CGKV = dstates,
      .values = {.x_NGV = in.v_NGV, .heads = n.heads, .v = n.v, .widened = true},
      .d_o = dy,
      .dq_NHK = Gradient<T>(a.dq_NHK),
      .dk_NHK = Gradient<T>(a.dk_NHK),
      .dg_NG = Gradient<float>(a.df_NH),
      .di_NH = Gradient<float>(a.di_NH)};
  LaunchAdditiveGradients<T, Decay::kMlstm>(stream, "scan_mlstm gradients", data, chunks);
}

template <class T>
struct Step {
  StepPlace place;
  const T *q_BHK, *k_BHK, *v_BHV;
  const float *i_BH, *f_BH, *max_BH;
  float scale;
  float *state_BHKW, *y_BHW, *next_BH;  // y: [num, den]
};

// Leaves the division and m to the next kernel: a block has not all columns.
template <class T>
__global__ void __launch_bounds__(kStepThreads) StepKernel(Step<T> data) {
  __shared__ StepKeys keys;
  __shared__ float sums[kStepThreads];
  const StepPlace& n = data.place;
  StepColumns columns(n, data.state_BHKW);
  keys.Load(n, data.q_BHK, data.k_BHK, nullptr, nullptr, nullptr);
  __syncthreads();
  const int64_t at = columns.at_head;
  const double kept = double{LogSigmoid(data.f_BH[at])} + double{data.max_BH[at]};
  const double i = double{data.i_BH[at]};
  const auto next = static_cast<float>(fmax(kept, i));
  const float keep = expf(static_cast<float>(kept - next));
  const float write = expf(static_cast<float>(i - next));
  const float v = columns.column < n.v ? Get(data.v_BHV, columns.at_value) : 1;
  float y = 0;
  columns.ForEach([&](int d, float& s) {
    s = keep * s + write * keys.k[d] * v;
    y += s * keys.q[d];
  });
  columns.Store();
  y = data.scale * columns.Sum(y, sums);
  if (columns.inside && columns.first_row == 0) data.y_BHW[at * n.width + columns.column] = y;
  if (blockIdx.x == 0 && threadIdx.x == 0) data.next_BH[at] = next;
}

template <class T>
void RunStep(const Stream& stream, const ScanMlstmStepArgs& a) {
  const int64_t batch = a.v_BHV.dim(0), v = a.v_BHV.dim(2), width = v + 1;
  const int64_t rows = batch * a.v_BHV.dim(1);
  float *y = ScratchFor<float>(stream, rows * (width + 1)), *next = y + rows * width;
  float* max = Data<float>(a.max_BH);
  const Step<T> data{.place = StepPlaceOf(a.q_BHK, a.v_BHV, width),
                     .q_BHK = Data<T>(a.q_BHK),
                     .k_BHK = Data<T>(a.k_BHK),
                     .v_BHV = Data<T>(a.v_BHV),
                     .i_BH = Data<float>(a.i_BH),
                     .f_BH = Data<float>(a.f_BH),
                     .max_BH = max,
                     .scale = static_cast<float>(a.scale),
                     .state_BHKW = Data<float>(a.state_BHKW),
                     .y_BHW = y,
                     .next_BH = next};
  StepKernel<T><<<StepGrid(data.place, batch), kStepThreads, 0, Handle(stream)>>>(data);
  CheckLaunch("scan_mlstm_step");
  T* o = Data<T>(a.o_BHV);
  ForEach(stream, "scan_mlstm_step", rows * width, [=] __device__(int64_t i) {
    const int64_t row = i / width, j = i % width;
    if (j == v) {
      max[row] = next[row];
      return;
    }
    Put(o, row * v + j, y[i] / fmaxf(fabsf(y[row * width + v]), expf(-next[row])));
  });
}

}  // namespace

void ScanMlstmForward(Stream& stream, const ScanMlstmForwardArgs& a) {
  if (a.documents.tokens() == 0) return;
  DispatchType("scan_mlstm", a.v_NHV.dtype(), [&]<class T>() { Forward<T>(stream, a); });
}

void ScanMlstmBackward(Stream& stream, const ScanMlstmBackwardArgs& a) {
  if (a.documents.tokens() == 0) return;
  DispatchType("scan_mlstm", a.v_NHV.dtype(), [&]<class T>() { Backward<T>(stream, a); });
}

void ScanMlstmStep(Stream& stream, const ScanMlstmStepArgs& a) {
  DispatchType("scan_mlstm_step", a.v_BHV.dtype(), [&]<class T>() { RunStep<T>(stream, a); });
}

}  // namespace lt2::cuda
