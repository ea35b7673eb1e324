#include "core/box.h"

#include <algorithm>

namespace lt2 {

Box Box::Whole(const Shape& shape) {
  Box box{.begin = shape, .extent = shape};
  for (int i = 0; i < shape.rank(); ++i) box.begin[i] = 0;
  return box;
}

Box Box::RowsOf(const Shape& whole, int64_t first, int64_t last) {
  Box box = Whole(whole);
  box.begin[0] = first;
  box.extent[0] = last - first;
  return box;
}

std::string Box::ToString() const { return begin.ToString() + "+" + extent.ToString(); }

std::optional<Box> Intersect(const Box& a, const Box& b) {
  CHECK_EQ(a.begin.rank(), b.begin.rank());
  Box both = a;
  for (int i = 0; i < a.begin.rank(); ++i) {
    const int64_t first = std::max(a.begin[i], b.begin[i]);
    const int64_t last = std::min(a.begin[i] + a.extent[i], b.begin[i] + b.extent[i]);
    if (last <= first) return std::nullopt;
    both.begin[i] = first;
    both.extent[i] = last - first;
  }
  return both;
}

void ForEachRun(const Box& a, const Box& b,
                const std::function<void(int64_t, int64_t, int64_t)>& run) {
  const std::optional<Box> both = Intersect(a, b);
  if (!both) return;
  const int rank = both->begin.rank();
  const int64_t length = rank == 0 ? 1 : both->extent.back();
  Shape at = both->begin;
  const auto offset_in = [&](const Box& box) {
    int64_t offset = 0;
    for (int i = 0; i < rank; ++i) offset = offset * box.extent[i] + (at[i] - box.begin[i]);
    return offset;
  };
  while (true) {
    run(offset_in(a), offset_in(b), length);
    int i = rank - 2;  // the next row of the intersection
    for (; i >= 0; --i) {
      if (++at[i] < both->begin[i] + both->extent[i]) break;
      at[i] = both->begin[i];
    }
    if (i < 0) return;
  }
}

}  // namespace lt2
