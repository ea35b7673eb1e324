#include "core/quantity.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "absl/status/status.h"
#include "core/check.h"
#include "core/strings.h"

namespace lt2 {
namespace {

struct UnitName {
  std::string_view name;
  Quantity::Unit unit;
  double scale;
};
constexpr UnitName kUnits[] = {
    {"step", Quantity::Unit::kSteps, 1},       {"steps", Quantity::Unit::kSteps, 1},
    {"token", Quantity::Unit::kTokens, 1},     {"tokens", Quantity::Unit::kTokens, 1},
    {"s", Quantity::Unit::kSeconds, 1},        {"sec", Quantity::Unit::kSeconds, 1},
    {"second", Quantity::Unit::kSeconds, 1},   {"seconds", Quantity::Unit::kSeconds, 1},
    {"min", Quantity::Unit::kSeconds, 60},     {"minute", Quantity::Unit::kSeconds, 60},
    {"minutes", Quantity::Unit::kSeconds, 60}, {"h", Quantity::Unit::kSeconds, 3600},
    {"hour", Quantity::Unit::kSeconds, 3600},  {"hours", Quantity::Unit::kSeconds, 3600},
    {"day", Quantity::Unit::kSeconds, 86400},  {"days", Quantity::Unit::kSeconds, 86400},
};

constexpr double kLargestCount = 9e15;  // below 2^53: every count is exact

std::string_view Trim(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

const char* Example(Quantity::Unit unit) {
  switch (unit) {
    case Quantity::Unit::kTokens:
      return "\"2e9 tokens\"";
    case Quantity::Unit::kSteps:
      return "\"1000 steps\"";
    case Quantity::Unit::kSeconds:
      return "\"30 min\"";
  }
  return "";
}

}  // namespace

int64_t Quantity::Tokens(int64_t tokens_per_step) const {
  CHECK(unit != Unit::kSeconds) << "a time has no tokens";
  const auto count = static_cast<int64_t>(value);
  return unit == Unit::kTokens ? count : count * tokens_per_step;
}

int64_t Quantity::Steps(int64_t tokens_per_step) const {
  CHECK(unit != Unit::kSeconds) << "a time has no steps";
  const auto count = static_cast<int64_t>(value);
  return unit == Unit::kSteps ? count : (count + tokens_per_step - 1) / tokens_per_step;
}

std::string Quantity::ToString() const {
  if (unit != Unit::kSeconds) {
    return StrCat(static_cast<int64_t>(value), unit == Unit::kSteps ? " steps" : " tokens");
  }
  char buffer[64];
  const auto result = std::to_chars(buffer, buffer + sizeof(buffer), value);
  return StrCat(std::string(buffer, result.ptr), " s");
}

absl::StatusOr<Quantity> ParseQuantity(std::string_view text, Quantity::Unit bare) {
  const std::string_view trimmed = Trim(text);
  Quantity quantity{.unit = bare};
  const auto [end, error] =
      std::from_chars(trimmed.data(), trimmed.data() + trimmed.size(), quantity.value);
  const std::string_view name = Trim(trimmed.substr(static_cast<size_t>(end - trimmed.data())));
  const auto found = std::find_if(std::begin(kUnits), std::end(kUnits),
                                  [&](const UnitName& unit) { return unit.name == name; });
  if (error != std::errc() || (!name.empty() && found == std::end(kUnits))) {
    return absl::InvalidArgumentError(StrCat(
        "wants a number and a unit such as \"1000 steps\", \"2e9 tokens\" or \"30 min\", got "
        "\"",
        text, "\""));
  }
  if (!name.empty()) {
    quantity.unit = found->unit;
    quantity.value *= found->scale;
  }
  if (!(quantity.value >= 0 && quantity.value <= kLargestCount)) {
    return absl::InvalidArgumentError(StrCat("must be from 0 to 9e15, got \"", text, "\""));
  }
  if (quantity.unit != Quantity::Unit::kSeconds && quantity.value != std::floor(quantity.value)) {
    return absl::InvalidArgumentError(StrCat("wants whole steps or tokens, got \"", text, "\""));
  }
  return quantity;
}

void ReadQuantity(const ConfigTable& table, std::string_view key, Quantity::Unit bare,
                  const std::vector<Quantity::Unit>& allowed, Quantity* value) {
  std::string text;
  if (!table.ReadScalar(key, &text)) return;
  absl::StatusOr<Quantity> quantity = ParseQuantity(text, bare);
  if (!quantity.ok()) {
    table.AddError(key, std::string(quantity.status().message()));
  } else if (std::find(allowed.begin(), allowed.end(), quantity->unit) == allowed.end()) {
    std::string examples;
    for (Quantity::Unit unit : allowed) {
      StrAppend(&examples, examples.empty() ? "" : " or ", Example(unit));
    }
    table.AddError(key, StrCat("wants an amount such as ", examples, ", got \"", text, "\""));
  } else {
    *value = *quantity;
  }
}

}  // namespace lt2
