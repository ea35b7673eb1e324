// Ranks that each hold a part of what an operator reduces over: heads, channels, rows of the
// vocabulary. Who they are is the link's business: an operator sees tensors.
#pragma once

#include "core/tensor.h"

namespace lt2 {

class RankLink {
 public:
  virtual ~RankLink() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Over all ranks, in place, float32 or float64; the same bits on every rank.
  virtual void Sum(const Tensor& x) = 0;
  virtual void Max(const Tensor& x) = 0;
};

}  // namespace lt2
