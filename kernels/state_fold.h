// States handed on along R parts of the token row (kernels/state_link.h).
//
//   S(0) = 0,      S(r + 1) = c_{r+1} (E_r + s_r M_r S(r))
//   D(R - 1) = 0,  D(r) = c_{r+1} (F_{r+1} + s_{r+1} M_{r+1}^T D(r + 1))
//
// c_r = 1 if the first document of part r began before it, s_r = 1 if part r lies within one
// document. S(r) is what part r begins with; D(r) the gradient of what it ends with, where F_r is
// that of what it begins with if D(r) = 0.
//
// A row of `states` begins with E_r or F_r, one of `maps` is M_r: G heads, states [K, V]; M is
// [K, K], [K] (a factor per row) or one number, all of AccumulatorOf(the run's dtype).
#pragma once

#include "kernels/kernel.h"

namespace lt2 {

// Bits of links_R.
enum PartLink : int32_t { kContinues = 1, kSpans = 2 };

// M of a head.
enum class StateMap : uint8_t { kMatrix, kRows, kNumber };

struct StateFoldArgs {
  Tensor states_RX, maps_RX;
  StateMap map = StateMap::kMatrix;
  Tensor links_R;  // I32
  int64_t part = 0;
  bool reverse = false;  // D, not S
  // out times exp(to - from), per head; undefined: 1.
  Tensor from_max_1G, to_max_1G;
  Tensor out_1GKV;
};

// States in frames, S standing for exp(m) S; a row is E_r, its G frames and the logs of G maps.
struct StateFoldMaxArgs {
  Tensor parts_RX, links_R;
  int64_t part = 0;
  Tensor out_1GKV, out_max_1G, next_max_1G;  // S(part), its frame and that of S(part + 1)
  // [R, G]: the factors that take the gradient of S(r + 1) to that of S(r), each in its frame.
  Tensor maps_RG;
};

LT2_KERNEL(StateFold, StateFoldArgs)
LT2_KERNEL(StateFoldMax, StateFoldMaxArgs)

}  // namespace lt2
