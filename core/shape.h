// The extents of a tensor: at most five, row-major, the last one contiguous.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <ostream>
#include <string>

#include "core/check.h"

namespace lt2 {

class Shape {
 public:
  static constexpr int kMaxRank = 5;

  Shape() = default;
  Shape(std::initializer_list<int64_t> dims) {
    CHECK_LE(dims.size(), size_t{kMaxRank});
    for (int64_t d : dims) dims_[rank_++] = d;
  }

  int rank() const { return rank_; }
  int64_t operator[](int i) const { return dims_[i]; }
  int64_t& operator[](int i) { return dims_[i]; }
  int64_t back() const { return dims_[rank_ - 1]; }

  // Elements in all; 1 for rank 0.
  int64_t size() const {
    int64_t n = 1;
    for (int i = 0; i < rank_; ++i) n *= dims_[i];
    return n;
  }
  // All extents but the last, multiplied: how many rows a row-wise operator sees.
  int64_t rows() const { return rank_ == 0 ? 1 : size() / (back() == 0 ? 1 : back()); }

  void push_back(int64_t extent) {
    CHECK_LT(rank_, kMaxRank);
    dims_[rank_++] = extent;
  }
  const int64_t* begin() const { return dims_.data(); }
  const int64_t* end() const { return dims_.data() + rank_; }
  bool operator==(const Shape&) const = default;

  std::string ToString() const {
    std::string out = "[";
    for (int i = 0; i < rank_; ++i) out += (i ? ", " : "") + std::to_string(dims_[i]);
    return out + "]";
  }

 private:
  std::array<int64_t, kMaxRank> dims_{};  // unused extents stay 0, so that == compares values
  int rank_ = 0;
};

inline std::ostream& operator<<(std::ostream& os, const Shape& shape) {
  return os << shape.ToString();
}

}  // namespace lt2
