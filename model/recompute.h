// Which activations a forward keeps and which its backward computes again.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lt2 {

// kMixer: each mixer (and its norm) again; kBlock: each block again; kLoop: a whole loop again, and
// in it each block, so that memory no longer grows with layers × loops. Attention outputs and scan
// states are kept under every policy.
enum class RecomputePolicy : uint8_t { kNone, kMixer, kBlock, kLoop };

inline const std::vector<std::string>& RecomputeNames() {
  static const std::vector<std::string> names = {"none", "mixer", "block", "loop"};
  return names;
}

}  // namespace lt2
