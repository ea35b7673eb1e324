// The sum of three branches of attention, each through a sigmoid gate per token and head.
//
//   o = sum_b σ(g_b) o_b;  do_b = σ(g_b) do,  dg_b = (do · o_b) σ(g_b) (1 - σ(g_b))
//
// (Native sparse attention's compressed, selected and window branch, in this order.)
#pragma once

#include <array>

#include "core/tape.h"
#include "kernels/kernel.h"

namespace lt2 {

inline constexpr int kBranches = 3;

struct BranchGateForwardArgs {
  std::array<Tensor, kBranches> branches_NHE;
  Tensor gates_NH3;
  Tensor o_NHE;
};

struct BranchGateBackwardArgs {
  Tensor do_NHE;
  std::array<Tensor, kBranches> branches_NHE;
  Tensor gates_NH3;
  std::array<Tensor, kBranches> dbranches_NHE;  // undefined where not wanted
  Tensor dgates_NH3;
  std::array<bool, kBranches> accumulate_dbranches = {};
  bool accumulate_dgates = false;
};

LT2_KERNEL(BranchGateForward, BranchGateForwardArgs)
LT2_KERNEL(BranchGateBackward, BranchGateBackwardArgs)

// o [N, H, E] from branches [N, H, E] and gates [N, H, 3].
Var BranchGate(Tape& tape, const std::array<Var, kBranches>& branches_NHE, Var gates_NH3);

}  // namespace lt2
