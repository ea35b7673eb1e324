// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
//
// A counter-based generator: four 32-bit words are a pure function of (key, counter), so that a
// random number belongs to a name and an index and never to an object's history.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

namespace lt2 {

using Philox4 = std::array<uint32_t, 4>;

constexpr Philox4 Philox(uint64_t key, uint64_t counter_low, uint64_t counter_high = 0) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  Philox4 c = {static_cast<uint32_t>(counter_low), static_cast<uint32_t>(counter_low >> 32),
               static_cast<uint32_t>(counter_high), static_cast<uint32_t>(counter_high >> 32)};
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * c[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57} * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(p0)};
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return c;
}

// A uniform double in the open interval (0, 1) from one word.
constexpr double OpenUniform(uint32_t word) { return (word + 0.5) * 0x1p-32; }

}  // namespace lt2
