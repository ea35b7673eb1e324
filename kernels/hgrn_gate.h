// HGRN2's forget gate with a lower bound l per channel (Qin et al., 2024): per token
//
//   exp(g) = l + (1 - l) σ(f),  k = 1 - exp(g) = (1 - l) σ(-f)
//
// and the bound of a layer from one learned table of all layers: with p the softmax of the table
// over layers, l of layer i is p_1 + … + p_i (0 for the first layer, i / L where the table is 0).
#pragma once

#include "core/tape.h"
#include "kernels/kernel.h"

namespace lt2 {

struct HgrnGateForwardArgs {
  Tensor f_ND, bound_D;  // 0 <= bound < 1
  Tensor g_ND, k_ND;
};
// With e = dg - exp(g) dk, the gradient of g in all: df = e (1 - l) σ(f) σ(-f) / exp(g),
// dbound = sum over tokens of e σ(-f) / exp(g).
struct HgrnGateBackwardArgs {
  Tensor dg_ND, dk_ND;  // undefined: zero
  Tensor f_ND, bound_D, df_ND, dbound_D;
  bool accumulate_df = false, accumulate_dbound = false;
};
LT2_KERNEL(HgrnGateForward, HgrnGateForwardArgs)
LT2_KERNEL(HgrnGateBackward, HgrnGateBackwardArgs)

struct LowerBoundForwardArgs {
  Tensor table_LD;
  int64_t layer = 0;
  Tensor bound_D;
};
// dtable_m += p_m ([1 <= m <= layer] - bound) dbound.
struct LowerBoundBackwardArgs {
  Tensor dbound_D, table_LD, bound_D;
  int64_t layer = 0;
  Tensor dtable_LD;
};
LT2_KERNEL(LowerBoundForward, LowerBoundForwardArgs)
LT2_KERNEL(LowerBoundBackward, LowerBoundBackwardArgs)

struct HgrnGates {
  Var g_ND, k_ND;
};
HgrnGates HgrnGate(Tape& tape, Var f_ND, Var bound_D);
Var LowerBound(Tape& tape, Param& table_LD, int64_t layer);

}  // namespace lt2
