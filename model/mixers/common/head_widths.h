// The sizes of a recurrent layer's heads, as its table says. Mistakes are noted on the table.
#pragma once

#include "core/config.h"

namespace lt2 {

inline constexpr int64_t kMostHeads = 4096;  // of a layer, and channels of a head

// `heads`, from 1 to kMostHeads; the fallback where that is wrong.
int64_t ReadHeads(const ConfigTable& table, int64_t fallback);
// `kv_heads`, a divisor of heads: so many heads of keys and values serve them. Default: heads.
int64_t ReadKvHeads(const ConfigTable& table, int64_t heads);
// `v_heads`, a multiple of heads: so many heads of values do they serve. Default: heads.
int64_t ReadValueHeads(const ConfigTable& table, int64_t heads);

// factor · base / heads, the channels of each of `heads` heads: an integer from 1 to kMostHeads.
// `key` may give another factor. 0 where the key or `heads` is wrong.
int64_t ReadHeadWidth(const ConfigTable& table, std::string_view key, double factor, int64_t base,
                      int64_t heads);

struct HeadWidths {
  int64_t heads, kv_heads, k, v;  // k = expand_k · width / heads, v likewise
};
// heads (fallback), kv_heads (heads), expand_k, expand_v.
HeadWidths ReadHeadWidths(const ConfigTable& table, int64_t width, int64_t fallback,
                          double expand_k, double expand_v);

}  // namespace lt2
