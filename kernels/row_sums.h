// Ranks that each have a summand of a product and keep the sums of some of its rows. Who they are
// and what travels when is theirs: an operator multiplies the rows that it is asked for.
#pragma once

#include <cstdint>
#include <functional>

#include "core/tape.h"

namespace lt2 {

class RowSums {
 public:
  virtual ~RowSums() = default;

  // Rows [begin, end) of this rank's summand, into `to`; every row once.
  using MakeRows = std::function<void(int64_t begin, int64_t end, const Tensor& to)>;
  // The sums of the own rows, of as many columns; numbers and device as `like` has them. What is
  // made first travels while the rest is made.
  virtual Tensor SumRows(int64_t columns, const Tensor& like, const MakeRows& make) = 0;

  // Rows [begin, end) of what all ranks have, which are there.
  using UseRows = std::function<void(int64_t begin, int64_t end, const Tensor& rows)>;
  // All rows, of the own ones. What has come is used while the rest travels.
  virtual Tensor GatherRows(const Tensor& own, const UseRows& use) = 0;

  // Of all ranks together.
  virtual int64_t rows() const = 0;
  // The same on the tape, for products that these ranks divide: gradients are summed over ranks.
  virtual Var EnterRows(Tape& tape, const Var& own, const UseRows& use) = 0;
};

}  // namespace lt2
