#include "kernels/cuda/scan_step.cuh"
#include "kernels/scan_delta.h"

namespace lt2::cuda {
namespace {

template <class T>
struct Step {
  StepPlace place;
  const T *q_BHK, *k_BHK, *v_BGV;
  const float *g_BG, *g_BGK, *beta_BG;
  float scale;
  float* state_BGKV;
  T* o_BGV;
};

template <class T>
__global__ void __launch_bounds__(kStepThreads) StepKernel(Step<T> data) {
  __shared__ StepKeys keys;
  __shared__ float sums[kStepThreads];
  StepColumns columns(data.place, data.state_BGKV);
  keys.Load(data.place, data.q_BHK, data.k_BHK, data.g_BG, data.g_BGK, nullptr);
  __syncthreads();
  float product = 0;
  columns.ForEach([&](int d, float& s) {
    s *= keys.decay[d];
    product += s * keys.k[d];
  });
  product = columns.Sum(product, sums);
  const int64_t at = columns.at_value;
  const float v = columns.inside ? Get(data.v_BGV, at) : 0;
  const float u = data.beta_BG[columns.at_head] * (v - product);
  float o = 0;
  columns.ForEach([&](int d, float& s) {
    s += keys.k[d] * u;
    o += s * keys.q[d];
  });
  columns.Store();
  o = columns.Sum(o, sums);
  if (columns.inside && columns.first_row == 0) Put(data.o_BGV, at, data.scale * o);
}

}  // namespace

void ScanDeltaStep(Stream& stream, const ScanDeltaStepArgs& a) {
  DispatchType("scan_delta_step", a.v_BGV.dtype(), [&]<class T>() {
    const Step<T> data{.place = StepPlaceOf(a.q_BHK, a.v_BGV, a.v_BGV.dim(2)),
                       .q_BHK = Data<T>(a.q_BHK),
                       .k_BHK = Data<T>(a.k_BHK),
                       .v_BGV = Data<T>(a.v_BGV),
                       .g_BG = DataOrNull<float>(a.g_BG),
                       .g_BGK = DataOrNull<float>(a.g_BGK),
                       .beta_BG = Data<float>(a.beta_BG),
                       .scale = static_cast<float>(a.scale),
                       .state_BGKV = Data<float>(a.state_BGKV),
                       .o_BGV = Data<T>(a.o_BGV)};
    StepKernel<T><<<StepGrid(data.place, a.v_BGV.dim(0)), kStepThreads, 0, Handle(stream)>>>(data);
    CheckLaunch("scan_delta_step");
  });
}

}  // namespace lt2::cuda
