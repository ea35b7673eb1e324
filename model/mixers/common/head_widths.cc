#include "model/mixers/common/head_widths.h"

#include <cmath>

#include "core/config_range.h"
#include "core/strings.h"

namespace lt2 {

int64_t ReadHeads(const ConfigTable& table, int64_t fallback) {
  int64_t heads = fallback;
  ReadInRange(table, "heads", 1, kMostHeads, &heads);
  return table.Wrong("heads") ? fallback : heads;
}

int64_t ReadKvHeads(const ConfigTable& table, int64_t heads) {
  int64_t kv_heads = heads;
  ReadInRange(table, "kv_heads", 1, kMostHeads, &kv_heads);
  if (!table.Wrong("heads") && !table.Wrong("kv_heads") && heads % kv_heads != 0) {
    table.AddError("kv_heads", StrCat(kv_heads, " does not divide heads ", heads));
  }
  return kv_heads;
}

int64_t ReadValueHeads(const ConfigTable& table, int64_t heads) {
  int64_t v_heads = heads;
  ReadInRange(table, "v_heads", 1, kMostHeads, &v_heads);
  if (!table.Wrong("heads") && !table.Wrong("v_heads") && v_heads % heads != 0) {
    table.AddError("v_heads", StrCat(v_heads, " is not a multiple of heads ", heads));
  }
  return v_heads;
}

int64_t ReadHeadWidth(const ConfigTable& table, std::string_view key, double factor, int64_t base,
                      int64_t heads) {
  ReadPositive(table, key, &factor);
  if (table.Wrong(key) || table.Wrong("heads")) return 0;
  // A factor like 5 / 6 is not exact.
  const double size = factor * static_cast<double>(base) / static_cast<double>(heads);
  if (size < 0.5 || size > kMostHeads || std::abs(size - std::round(size)) > 1e-9 * size) {
    table.AddError(key, StrCat(factor, " × ", base, " / ", heads, " heads: the channels of one ",
                               "must be an integer from 1 to ", kMostHeads));
    return 0;
  }
  return std::llround(size);
}

HeadWidths ReadHeadWidths(const ConfigTable& table, int64_t width, int64_t fallback,
                          double expand_k, double expand_v) {
  HeadWidths widths{.heads = ReadHeads(table, fallback)};
  widths.kv_heads = ReadKvHeads(table, widths.heads);
  widths.k = ReadHeadWidth(table, "expand_k", expand_k, width, widths.heads);
  widths.v = ReadHeadWidth(table, "expand_v", expand_v, width, widths.heads);
  return widths;
}

}  // namespace lt2
