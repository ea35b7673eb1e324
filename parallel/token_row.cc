#include "parallel/token_row.h"

#include <algorithm>

#include "core/check.h"

namespace lt2 {

RowPart PartOf(std::span<const int32_t> cu_seqlens, int64_t begin, int64_t end) {
  CHECK(0 <= begin && begin < end && end <= cu_seqlens.back())
      << "tokens " << begin << " to " << end << " of " << cu_seqlens.back();
  RowPart range{.begin = begin, .end = end, .cu_seqlens = {0}};
  const auto next = std::ranges::upper_bound(cu_seqlens, static_cast<int32_t>(begin));
  range.first_position = begin - *(next - 1);
  for (auto it = next; it != cu_seqlens.end() && *it < end; ++it) {
    range.cu_seqlens.push_back(static_cast<int32_t>(*it - begin));
  }
  range.cu_seqlens.push_back(static_cast<int32_t>(end - begin));
  return range;
}

}  // namespace lt2
