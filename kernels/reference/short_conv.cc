#include "kernels/short_conv.h"

#include "kernels/reference/gate.h"

namespace lt2::reference {
namespace {

// Input row `position` of a document, counted from its first token; negative: before it.
struct History {
  const Tensor& x;
  const Tensor& tail;
  int64_t document, begin, before;  // before: rows a tail holds

  double At(int64_t position, int64_t channel) const {
    const int64_t channels = x.dim(1);
    if (position >= 0) return x.data<double>()[(begin + position) * channels + channel];
    if (!tail.defined() || position < -before) return 0;
    return tail.data<double>()[(document * before + before + position) * channels + channel];
  }
};

double PreActivation(const History& history, const Tensor& w, const Tensor& bias, int64_t t,
                     int64_t c) {
  const int64_t width = w.dim(1);
  double u = bias.defined() ? bias.data<double>()[c] : 0.0;
  for (int64_t i = 0; i < width; ++i) {
    u += w.data<double>()[c * width + i] * history.At(t - width + 1 + i, c);
  }
  return u;
}

}  // namespace

void ShortConvForward(Stream&, const ShortConvForwardArgs& a) {
  const int32_t* cu = a.documents.cu_seqlens().data<int32_t>();
  const int64_t channels = a.x_NC.dim(1);
  for (int64_t d = 0; d < a.documents.count(); ++d) {
    const History history{a.x_NC, a.tail_DPC, d, cu[d], a.w_CW.dim(1) - 1};
    for (int64_t t = 0; t < cu[d + 1] - cu[d]; ++t) {
      for (int64_t c = 0; c < channels; ++c) {
        const double u = PreActivation(history, a.w_CW, a.bias_C, t, c);
        a.y_NC.data<double>()[(cu[d] + t) * channels + c] = a.silu ? u * Sigmoid(u) : u;
      }
    }
  }
}

// Each output spreads its gradient over the taps it read.
void ShortConvBackward(Stream&, const ShortConvBackwardArgs& a) {
  const int32_t* cu = a.documents.cu_seqlens().data<int32_t>();
  const int64_t channels = a.x_NC.dim(1), width = a.w_CW.dim(1);
  double* dx = a.dx_NC.defined() ? a.dx_NC.data<double>() : nullptr;
  if (dx != nullptr && !a.accumulate_dx) a.dx_NC.Zero();
  for (int64_t d = 0; d < a.documents.count(); ++d) {
    const History history{a.x_NC, a.tail_DPC, d, cu[d], width - 1};
    for (int64_t t = 0; t < cu[d + 1] - cu[d]; ++t) {
      for (int64_t c = 0; c < channels; ++c) {
        const double u = PreActivation(history, a.w_CW, a.bias_C, t, c), s = Sigmoid(u);
        const double dy = a.dy_NC.data<double>()[(cu[d] + t) * channels + c];
        const double du = a.silu ? dy * s * (1 + u * (1 - s)) : dy;
        if (a.dbias_C.defined()) a.dbias_C.data<double>()[c] += du;
        for (int64_t i = 0; i < width; ++i) {
          const int64_t from = t - width + 1 + i;
          if (a.dw_CW.defined()) a.dw_CW.data<double>()[c * width + i] += du * history.At(from, c);
          if (dx != nullptr && from >= 0) {
            dx[(cu[d] + from) * channels + c] += du * a.w_CW.data<double>()[c * width + i];
          }
        }
      }
    }
  }
}

void ShortConvTail(Stream&, const ShortConvTailArgs& a) {
  const int32_t* cu = a.documents.cu_seqlens().data<int32_t>();
  const int64_t rows = a.tail_out_DPC.dim(1), channels = a.x_NC.dim(1);
  a.tail_out_DPC.Zero();
  for (int64_t d = 0; d < a.documents.count(); ++d) {
    const History history{a.x_NC, a.tail_DPC, d, cu[d], rows};
    for (int64_t p = 0; p < rows; ++p) {
      for (int64_t c = 0; c < channels; ++c) {
        a.tail_out_DPC.data<double>()[(d * rows + p) * channels + c] =
            history.At(cu[d + 1] - cu[d] - rows + p, c);
      }
    }
  }
}

void ShortConvStep(Stream&, const ShortConvStepArgs& a) {
  const int64_t rows = a.tail_BPC.dim(1), channels = a.x_BC.dim(1);
  for (int64_t b = 0; b < a.x_BC.dim(0); ++b) {
    const History history{a.x_BC, a.tail_BPC, b, b, rows};
    double* tail = a.tail_BPC.data<double>() + b * rows * channels;
    for (int64_t c = 0; c < channels; ++c) {
      const double u = PreActivation(history, a.w_CW, a.bias_C, 0, c);
      a.y_BC.data<double>()[b * channels + c] = a.silu ? u * Sigmoid(u) : u;
    }
    for (int64_t i = 0; i < (rows - 1) * channels; ++i) tail[i] = tail[i + channels];
    for (int64_t c = 0; c < channels && rows > 0; ++c) {
      tail[(rows - 1) * channels + c] = history.At(0, c);
    }
  }
}

}  // namespace lt2::reference
