// The reverse pass over chunks with what it needs, and then each chunk's gradients.
#include "kernels/cuda/scan_delta_gradients.cuh"
#include "kernels/cuda/warpgroup.cuh"

namespace lt2::cuda {
namespace {

template <class T>
struct BackwardScratch {
  ScanOperands<T> operands;
  T* inverse;
};

template <class T>
void ReversePass(const Stream& stream, const ScanDeltaBackwardArgs& a, const DeltaInputs<T>& in,
                 const BackwardScratch<T>& scratch) {
  const ScanShape& n = in.shape;
  const T* d_o = DataOrNull<T>(a.do_NGV);
  T* du = Data<T>(a.e_NGV);
  LaunchPrepareDelta<T, true>(
      stream,
      {.in = in, .operands = scratch.operands, .inverse = scratch.inverse, .d_o = d_o, .u = du},
      a.documents.chunk_capacity());
  const ReverseStates<T> data{.shape = n,
                              .operands = scratch.operands,
                              .dfinal = LastStates(a.dfinal_DGKV),
                              .dinitial = InitialStates(a.dinitial_DGKV.to),
                              .accumulate = a.dinitial_DGKV.accumulate,
                              .dstates_CGKV = Data<T>(a.dstates_CGKV),
                              .d_o = {.x_NGV = d_o, .heads = n.heads, .v = n.v},
                              .du_NGV = du};
  LaunchReverseStates<T, /*kDelta=*/true>(stream, "scan_delta reverse states", data);
}

bool FitsWarpgroups(const DeltaGradients<bf16>& data) {
  const ScanShape& n = data.in.shape;
  if (!HasHopper() || reinterpret_cast<uintptr_t>(data.in.g_NGK) % 16 != 0) return false;
  if (n.k > 2 * kPanel || n.k % 8 != 0 || n.v % 8 != 0) return false;
  for (const bf16* x :
       {data.in.q_NHK, data.in.k_NHK, data.in.v_NGV, data.do_NGV, data.u_NGV,
        static_cast<const bf16*>(data.e_NGV), data.states_CGKV, data.dstates_CGKV,
        static_cast<const bf16*>(data.dq_NHK.to), static_cast<const bf16*>(data.dk_NHK.to),
        static_cast<const bf16*>(data.dv_NGV.to)}) {
    if (reinterpret_cast<uintptr_t>(x) % 16 != 0) return false;
  }
  return true;
}

template <class T>
void Backward(const Stream& stream, const ScanDeltaBackwardArgs& a) {
  if (a.documents.tokens() == 0) return;
  DeltaInputs<T> in = DeltaInputsOf<T>(a);
  const ScanShape& n = in.shape;
  const bool inputs =
      AnyWanted({&a.dq_NHK, &a.dk_NHK, &a.dv_NGV, &a.dg_NG, &a.dg_NGK, &a.dbeta_NG});
  if (!inputs) in.shape.which = OneOrAll(a.dinitial_DGKV.to, Which::kFirst);
  const int64_t chunks = a.documents.chunk_capacity();
  const BackwardScratch<T> scratch = CarveScratch(stream, [&](Carver& carver) {
    return BackwardScratch<T>{.operands = TakeDeltaOperands(carver, in, chunks),
                              .inverse = carver.Take<T>(chunks * n.heads * kPanel * kPanel)};
  });
  ReversePass(stream, a, in, scratch);
  if (!inputs) return;

  DeltaGradients<T> data{.in = in,
                         .inverse = scratch.inverse,
                         .states_CGKV = Data<T>(a.states_CGKV),
                         .dstates_CGKV = Data<T>(a.dstates_CGKV),
                         .u_NGV = Data<T>(a.u_NGV),
                         .do_NGV = DataOrNull<T>(a.do_NGV),
                         .e_NGV = Data<T>(a.e_NGV),
                         .dq_NHK = Gradient<T>(a.dq_NHK),
                         .dk_NHK = Gradient<T>(a.dk_NHK),
                         .dv_NGV = Gradient<T>(a.dv_NGV),
                         .dg_NG = Gradient<float>(a.dg_NG),
                         .dg_NGK = Gradient<float>(a.dg_NGK),
                         .dbeta_NG = Gradient<float>(a.dbeta_NG),
                         .group = n.heads / n.key_heads};
  if constexpr (std::is_same_v<T, bf16>) {
    if (FitsWarpgroups(data)) {
      const auto launch = in.g_NGK == nullptr ? LaunchRowGradients : LaunchChannelGradients;
      return launch(stream, data, static_cast<int>(chunks * n.key_heads));
    }
  }
  const bool channels = in.g_NGK != nullptr;
  const dim3 grid(static_cast<unsigned>(chunks), n.key_heads);
  const int64_t shared = DeltaGradientsShared<T>(channels);
  const auto kernel = channels ? DeltaGradientsKernel<T, true> : DeltaGradientsKernel<T, false>;
  AllowShared(kernel, shared);
  kernel<<<grid, kPanelThreads, shared, Handle(stream)>>>(data);
  CheckLaunch("scan_delta gradients");
}

}  // namespace

void ScanDeltaBackward(Stream& stream, const ScanDeltaBackwardArgs& args) {
  DispatchType("scan_delta", args.v_NGV.dtype(), [&]<class T>() { Backward<T>(stream, args); });
}

}  // namespace lt2::cuda
