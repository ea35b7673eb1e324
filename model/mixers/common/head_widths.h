// The widths of a recurrent layer's heads, as `heads`, `expand_k` and `expand_v` of its table say.
#pragma once

#include <cmath>

#include "core/config.h"
#include "core/strings.h"

namespace lt2 {

struct HeadWidths {
  int64_t heads, k, v;  // k = expand_k · width / heads
};

// heads: the default. Notes mistakes on the table.
inline HeadWidths ReadHeadWidths(const ConfigTable& table, int64_t width, int64_t heads,
                                 double expand_k, double expand_v) {
  HeadWidths widths{.heads = heads, .k = 0, .v = 0};
  table.Read("heads", &widths.heads);
  table.Read("expand_k", &expand_k);
  table.Read("expand_v", &expand_v);
  if (widths.heads <= 0) {
    table.AddError("heads", "must be positive");
    return widths;
  }
  const auto share = [&](const char* key, double expand) {
    const double exact = expand * static_cast<double>(width) / static_cast<double>(widths.heads);
    const int64_t rounded = std::llround(exact);
    if (rounded <= 0 || static_cast<double>(rounded) != exact) {
      table.AddError(key, StrCat(expand, " × width ", width, " / heads ", widths.heads,
                                 " must be a positive integer"));
    }
    return rounded;
  };
  widths.k = share("expand_k", expand_k);
  widths.v = share("expand_v", expand_v);
  return widths;
}

}  // namespace lt2
