// An axis-aligned piece of a logical tensor, in logical coordinates.
#pragma once

#include <functional>
#include <optional>

#include "core/shape.h"

namespace lt2 {

struct Box {
  Shape begin;
  Shape extent;

  static Box Whole(const Shape& shape);
  // Rows [first, last) of the leading extent of `whole`.
  static Box RowsOf(const Shape& whole, int64_t first, int64_t last);

  int64_t size() const { return extent.size(); }
  bool empty() const { return extent.size() == 0; }
  bool operator==(const Box&) const = default;
  std::string ToString() const;
};

// The elements both boxes hold; empty optional if none.
std::optional<Box> Intersect(const Box& a, const Box& b);

// Calls run(offset in a's memory, offset in b's memory, elements) for every contiguous run of the
// intersection, both boxes stored row-major and dense. The one place that turns boxes into copies.
void ForEachRun(const Box& a, const Box& b,
                const std::function<void(int64_t, int64_t, int64_t)>& run);

}  // namespace lt2
