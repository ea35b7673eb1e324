// What the delta rule's kernels are given, and what its preparation leaves.
#pragma once

#include "kernels/cuda/scan_states.cuh"
#include "kernels/scan_delta.h"

namespace lt2::cuda {

template <class T>
struct DeltaInputs {
  ScanShape shape;
  const T *q_NHK, *k_NHK, *v_NGV;
  const float *g_NG, *g_NGK;  // null: no such decay
  const float* beta_NG;
  float scale;
};
template <class T, class Args>
DeltaInputs<T> DeltaInputsOf(const Args& a) {
  return {.shape = ScanShapeOf(a.q_NHK, a.v_NGV, a.documents),
          .q_NHK = Data<T>(a.q_NHK),
          .k_NHK = Data<T>(a.k_NHK),
          .v_NGV = Data<T>(a.v_NGV),
          .g_NG = DataOrNull<float>(a.g_NG),
          .g_NGK = DataOrNull<float>(a.g_NGK),
          .beta_NG = Data<float>(a.beta_NG),
          .scale = static_cast<float>(a.scale)};
}

// q_read, attention: null unless wanted.
template <class T>
ScanOperands<T> TakeDeltaOperands(Carver& carver, const DeltaInputs<T>& in, int64_t chunks,
                                  bool wants_q_read = true, bool wants_attention = true) {
  const int64_t items = chunks * in.shape.heads, rows = items * kPanel * PaddedWidth(in.shape.k);
  ScanOperands<T> operands;
  operands.q_read = wants_q_read ? carver.Take<T>(rows) : nullptr;
  operands.k_write = carver.Take<T>(rows);
  operands.w = carver.Take<T>(rows);
  operands.attention = wants_attention ? carver.Take<T>(items * kPanel * kPanel) : nullptr;
  operands.decay = carver.Take<float>(items * PaddedWidth(in.shape.k));
  return operands;
}

template <class T>
struct DeltaPreparation {
  DeltaInputs<T> in;
  ScanOperands<T> operands;
  T* inverse;                   // T [64, 64] of all, for the backward; null: not wanted
  const T* d_o;                 // null: zero
  T* u;                         // u_0, or of the backward dU_0
  float* read_scale = nullptr;  // [items, 64] scale exp(G), if there is no operands.q_read
};

}  // namespace lt2::cuda
