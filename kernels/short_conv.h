// Depthwise causal convolution over time, one filter of W taps per channel, then SiLU where asked:
//
//   u_t = bias + sum_i w[:, i] x_{t - W + 1 + i},  y_t = u_t sigmoid(u_t)  or  y_t = u_t
//
// The last tap multiplies the current token. Rows before a document's start are zero, or come from
// a tail: the W - 1 input rows before it, oldest first (prefill and decoding).
//
// Shapes: N tokens of D documents, C channels, P = W - 1 rows of a tail, B sequences.
#pragma once

#include "core/tape.h"
#include "kernels/documents.h"
#include "kernels/kernel.h"

namespace lt2 {

struct ShortConvForwardArgs {
  Tensor x_NC, w_CW;
  Tensor bias_C;    // undefined: none
  Tensor tail_DPC;  // undefined: zero
  bool silu = true;
  Documents documents;
  Tensor y_NC;
};

struct ShortConvBackwardArgs {
  Tensor x_NC, w_CW, bias_C, tail_DPC;
  bool silu = true;
  Documents documents;
  Tensor dy_NC;
  Tensor dx_NC;  // undefined: not wanted
  bool accumulate_dx = false;
  Tensor dw_CW, dbias_C;  // added to; undefined: not wanted
};

// The last W - 1 input rows of each document; shorter documents reach back into their own tail.
struct ShortConvTailArgs {
  Tensor x_NC;
  Tensor tail_DPC;  // what came before; undefined: zero
  Documents documents;
  Tensor tail_out_DPC;  // zero for documents that are not there
};

// One token for each of B sequences; the tail moves on by it.
struct ShortConvStepArgs {
  Tensor x_BC, w_CW, bias_C;
  bool silu = true;
  Tensor tail_BPC;
  Tensor y_BC;
};

LT2_KERNEL(ShortConvForward, ShortConvForwardArgs)
LT2_KERNEL(ShortConvBackward, ShortConvBackwardArgs)
LT2_KERNEL(ShortConvTail, ShortConvTailArgs)
LT2_KERNEL(ShortConvStep, ShortConvStepArgs)

// x_NC -> y_NC. bias_C may be null, tail_DPC undefined (else D = documents.capacity(); it gets no
// gradient).
Var ShortConv(Tape& tape, const Var& x_NC, Param& w_CW, Param* bias_C, bool silu,
              const Documents& documents, const Tensor& tail_DPC = {});

}  // namespace lt2
