// Amounts of work or time as users write them: 4096, "1000 steps", "2e9 tokens", "30 min".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "core/config.h"

namespace lt2 {

struct Quantity {
  enum class Unit : uint8_t { kTokens, kSteps, kSeconds };
  double value = 0;
  Unit unit = Unit::kTokens;

  bool operator==(const Quantity&) const = default;
  // Tokens, given the tokens of one step; CHECKs that it is no time. Steps become whole steps.
  int64_t Tokens(int64_t tokens_per_step) const;
  // Whole steps, at least one unless the value is 0: tokens are rounded up. CHECKs that it is no
  // time.
  int64_t Steps(int64_t tokens_per_step) const;
  // "1000 steps", "2000000000 tokens", "1800 s": parses back equal.
  std::string ToString() const;
};

// Units: steps, tokens, s, seconds, min, minutes, h, hours, days, singular or plural. A bare number
// takes `bare`. InvalidArgument says what is allowed; so does a negative number, or a fraction of a
// step or token.
absl::StatusOr<Quantity> ParseQuantity(std::string_view text, Quantity::Unit bare);

// Reads `key`, a number (in units of `bare`) or a string; absent: *value stays. Notes an error for
// what ParseQuantity refuses, and for a unit that is not in `allowed`.
void ReadQuantity(const ConfigTable& table, std::string_view key, Quantity::Unit bare,
                  const std::vector<Quantity::Unit>& allowed, Quantity* value);

}  // namespace lt2
