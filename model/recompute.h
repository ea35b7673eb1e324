// Which activations a forward keeps and which its backward computes again.
#pragma once

#include <cstdint>

namespace lt2 {

// kKeep: nothing is computed again; kNone: in bfloat16 what costs little more than reading it
// (norms, gates, convolutions: core/saved.h); kFfn: the FFN's gate and up products again, and the
// mixers' products that are wider than the model; kMixer: each mixer (and its norm) again; kBlock:
// each block again; kLoop: a whole loop again, and in it each block, so that memory no longer grows
// with layers × loops. Attention outputs and scan states are kept under every policy.
enum class RecomputePolicy : uint8_t { kKeep, kNone, kFfn, kMixer, kBlock, kLoop };

// All of them, by what is computed again.
constexpr RecomputePolicy kRecomputePolicies[] = {RecomputePolicy::kKeep,  RecomputePolicy::kNone,
                                                  RecomputePolicy::kFfn,   RecomputePolicy::kMixer,
                                                  RecomputePolicy::kBlock, RecomputePolicy::kLoop};

constexpr const char* Name(RecomputePolicy policy) {
  constexpr const char* kNames[] = {"keep", "none", "ffn", "mixer", "block", "loop"};
  return kNames[static_cast<int>(policy)];
}

}  // namespace lt2
