#include "core/config_range.h"

#include <cmath>

#include "core/strings.h"

namespace lt2 {

void ReadInRange(const ConfigTable& table, std::string_view key, int64_t least, int64_t most,
                 int64_t* value) {
  table.Read(key, value);
  if (*value >= least && *value <= most) return;
  table.AddError(key, StrCat("must be from ", least, " to ", most, ", is ", *value));
}

void ReadInRange(const ConfigTable& table, std::string_view key, double least, double most,
                 double* value) {
  table.Read(key, value);
  if (*value >= least && *value <= most) return;  // NaN is not
  table.AddError(key, StrCat("must be from ", least, " to ", most, ", is ", *value));
}

void ReadPositive(const ConfigTable& table, std::string_view key, double* value) {
  table.Read(key, value);
  if (*value > 0 && std::isfinite(*value)) return;
  table.AddError(key, StrCat("must be a finite number above 0, is ", *value));
}

}  // namespace lt2
