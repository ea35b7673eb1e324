#include "kernels/cuda/scan_delta_prepare.cuh"
#include "kernels/cuda/scan_outputs.cuh"

namespace lt2::cuda {
namespace {

template <class T>
struct ForwardScratch {
  ScanOperands<T> operands;
  T *states, *u;      // where the backward wants none
  float* read_scale;  // in place of operands.q_read where outputs can be made of q itself
};

template <class T>
void Forward(const Stream& stream, const ScanDeltaForwardArgs& a) {
  DeltaInputs<T> in = DeltaInputsOf<T>(a);
  const ScanShape& n = in.shape;
  const bool outputs = a.o_NGV.defined();
  if (!outputs) in.shape.which = OneOrAll(a.final_DGKV, Which::kLast);
  const int64_t chunks = a.documents.chunk_capacity();
  if (a.documents.tokens() == 0) return;
  const bool reads_q = in.g_NGK == nullptr &&
                       FitsDeltaTiles(in, {DataOrNull<T>(a.o_NGV), DataOrNull<T>(a.states_CGKV),
                                           DataOrNull<T>(a.u_NGV)});
  const ForwardScratch<T> scratch = CarveScratch(stream, [&](Carver& carver) {
    ForwardScratch<T> parts{.operands = TakeDeltaOperands(carver, in, chunks, !reads_q, outputs)};
    const bool states = outputs && !a.states_CGKV.defined();
    parts.states = states ? carver.Take<T>(chunks * n.heads * n.k * n.v) : nullptr;
    parts.u = carver.Take<T>(a.u_NGV.defined() ? 0 : a.v_NGV.size());
    parts.read_scale = reads_q ? carver.Take<float>(chunks * n.heads * kPanel) : nullptr;
    return parts;
  });
  T* states = a.states_CGKV.defined() ? Data<T>(a.states_CGKV) : scratch.states;
  T* u = a.u_NGV.defined() ? Data<T>(a.u_NGV) : scratch.u;

  LaunchPrepareDelta<T, false>(
      stream, {.in = in, .operands = scratch.operands, .u = u, .read_scale = scratch.read_scale},
      chunks);
  LaunchForwardStates<T, /*kDelta=*/true>(stream, "scan_delta states",
                                          {.shape = n,
                                           .operands = scratch.operands,
                                           .initial = InitialStates(a.initial_DGKV),
                                           .final = LastStates(a.final_DGKV),
                                           .states_CGKV = states,
                                           .values = {.x_NGV = u, .heads = n.heads, .v = n.v},
                                           .u_NGV = u});
  if (!outputs) return;
  LaunchChunkOutputs<T, Outputs::kRead>(stream, "scan_delta outputs",
                                        {.shape = n,
                                         .rows = scratch.operands.q_read,
                                         .attention = scratch.operands.attention,
                                         .states_CGKV = states,
                                         .values = {.x_NGV = u, .heads = n.heads, .v = n.v},
                                         .o_NGV = Data<T>(a.o_NGV),
                                         .q_NHK = in.q_NHK,
                                         .read_scale = scratch.read_scale},
                                        chunks);
}

}  // namespace

void ScanDeltaForward(Stream& stream, const ScanDeltaForwardArgs& args) {
  DispatchType("scan_delta", args.v_NGV.dtype(), [&]<class T>() { Forward<T>(stream, args); });
}

}  // namespace lt2::cuda
