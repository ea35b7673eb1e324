// One of two ranks, the other of which holds nothing: sums of zeros, and no maximum.
#pragma once

#include "kernels/rank_link.h"

namespace lt2 {

class LinkToNothing final : public RankLink {
 public:
  int rank() const override { return 0; }
  int size() const override { return 2; }
  void Sum(const Tensor&) override {}
  void Max(const Tensor&) override {}
};

}  // namespace lt2
