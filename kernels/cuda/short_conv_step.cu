// The short convolution in decoding: the tail that a prefill leaves, and one token at a time.
#include "kernels/cuda/piece.cuh"
#include "kernels/short_conv.h"

namespace lt2::cuda {
namespace {

template <class T>
struct TailData {
  int64_t rows, channels;
  const T *x_NC, *tail_DPC;  // no tail: null, zeros
  const int32_t* cu_seqlens;
  T* out_DPC;
};

template <class T>
void RunTail(const Stream& stream, const TailData<T>& data, int64_t size) {
  ForEach(stream, "short_conv tail", size, [=] __device__(int64_t i) {
    const int64_t document = i / (data.rows * data.channels), channel = i % data.channels;
    const int64_t begin = data.cu_seqlens[document], end = data.cu_seqlens[document + 1];
    if (begin == end) return Put(data.out_DPC, i, 0);  // beyond the last document
    const int64_t position = end - begin - data.rows + i / data.channels % data.rows;
    float value = 0;
    if (position >= 0) {
      value = Get(data.x_NC, (begin + position) * data.channels + channel);
    } else if (data.tail_DPC != nullptr) {
      const int64_t row = document * data.rows + data.rows + position;
      value = Get(data.tail_DPC, row * data.channels + channel);
    }
    Put(data.out_DPC, i, value);
  });
}

template <class T>
struct StepData {
  int64_t width, channels;
  const T* x_BC;
  const float *w_CW, *bias_C;  // no bias: null
  bool silu;
  T *tail_BPC, *y_BC;
};

template <class T>
void RunStep(const Stream& stream, const StepData<T>& data, int64_t size) {
  ForEach(stream, "short_conv step", size, [=] __device__(int64_t i) {
    const int64_t sequence = i / data.channels, channel = i % data.channels;
    const int64_t before = data.width - 1;
    T* tail = data.tail_BPC + sequence * before * data.channels + channel;
    const float* w = data.w_CW + channel * data.width;
    float u = data.bias_C != nullptr ? data.bias_C[channel] : 0;
    for (int64_t t = 0; t < before; ++t) {
      u += w[t] * Get(tail, t * data.channels);
      if (t > 0) tail[(t - 1) * data.channels] = tail[t * data.channels];
    }
    u += w[before] * Get(data.x_BC, i);
    if (before > 0) tail[(before - 1) * data.channels] = data.x_BC[i];
    Put(data.y_BC, i, data.silu ? u * SigmoidOf<T>(u) : u);
  });
}

}  // namespace

void ShortConvTail(Stream& stream, const ShortConvTailArgs& a) {
  DispatchType("short_conv tail", a.x_NC.dtype(), [&]<class T>() {
    const TailData<T> data{.rows = a.tail_out_DPC.dim(1),
                           .channels = a.x_NC.dim(1),
                           .x_NC = Data<T>(a.x_NC),
                           .tail_DPC = DataOrNull<T>(a.tail_DPC),
                           .cu_seqlens = Data<int32_t>(a.documents.cu_seqlens()),
                           .out_DPC = Data<T>(a.tail_out_DPC)};
    RunTail(stream, data, a.tail_out_DPC.size());
  });
}

void ShortConvStep(Stream& stream, const ShortConvStepArgs& a) {
  DispatchType("short_conv step", a.x_BC.dtype(), [&]<class T>() {
    const StepData<T> data{.width = a.w_CW.dim(1),
                           .channels = a.x_BC.dim(1),
                           .x_BC = Data<T>(a.x_BC),
                           .w_CW = Data<float>(a.w_CW),
                           .bias_C = DataOrNull<float>(a.bias_C),
                           .silu = a.silu,
                           .tail_BPC = Data<T>(a.tail_BPC),
                           .y_BC = Data<T>(a.y_BC)};
    RunStep(stream, data, a.x_BC.size());
  });
}

}  // namespace lt2::cuda
