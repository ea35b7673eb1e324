// A keyed bijection on [0, n), computed and not stored.
//
// A balanced Feistel network of eight rounds over 2h bits, 4^h >= n, whose round function is
// Philox; a value that lands outside [0, n) is sent through again (cycle walking, Black and
// Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002), fewer than four times on average.
#pragma once

#include <cstdint>

#include "core/check.h"
#include "core/philox.h"

namespace lt2 {

class Permutation {
 public:
  // n >= 1, at most 2^62.
  Permutation(uint64_t key, int64_t n) : key_(key), n_(static_cast<uint64_t>(n)) {
    CHECK_GE(n, 1);
    CHECK_LE(n, int64_t{1} << 62);
    while ((uint64_t{1} << (2 * half_bits_)) < n_) ++half_bits_;
  }

  int64_t operator()(int64_t index) const {
    CHECK(index >= 0 && static_cast<uint64_t>(index) < n_) << index << " of " << n_;
    uint64_t x = static_cast<uint64_t>(index);
    do {
      x = Scramble(x);
    } while (x >= n_);
    return static_cast<int64_t>(x);
  }

 private:
  static constexpr uint64_t kRounds = 8;

  uint64_t Scramble(uint64_t x) const {
    const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
    uint64_t left = x >> half_bits_, right = x & mask;
    for (uint64_t round = 0; round < kRounds; ++round) {
      const uint64_t next = left ^ (Philox(key_, right, round)[0] & mask);
      left = right;
      right = next;
    }
    return left << half_bits_ | right;
  }

  uint64_t key_, n_;
  int half_bits_ = 1;
};

}  // namespace lt2
