// A row of tokens worked on in tiles, the same ones whatever the number of ranks that share it.
//
// A tile is to operators what a rank's part of the row is otherwise: it hears from the tile to its
// left in the forward and from the one to its right in the backward, and cannot tell where these
// are. A rank takes its tiles from left to right, each through the whole model, and back from right
// to left. So kernels are called with the same tensors on any number of ranks that divides that of
// tiles, and give the same bits.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "core/param.h"
#include "parallel/communicator.h"

namespace lt2 {

// The tiles of this rank, each by its place among all `tiles`, a multiple of cp's size, which must
// outlive them.
std::vector<std::unique_ptr<Communicator>> TilesHere(Communicator& cp, int tiles);

// x of each tile, in turn: of the last one it becomes the sum over all in their order, of others 0.
void SumOverTiles(Stream& stream, Communicator& tile, const Tensor& x);

// Gradients of parameters summed over a row's tiles in one order too: the ranks that share the row
// add to them one after another, from the last rank, with the row's last tiles, to the first.
class GradientTurns {
 public:
  // `ranks` neighbours in `replicas` share a row. Both arguments must outlive it.
  GradientTurns(std::span<Param* const> params, Communicator& replicas, int ranks);

  // Around each backward of a step: gradients become what was added up before this rank's turn;
  // and are handed on. In the end the first rank has them, and the others 0.
  void Take(bool first_backward);
  void HandOn(bool last_backward);

 private:
  const std::vector<Param*> params_;
  Communicator& replicas_;
  const int ranks_, at_;  // this one's place among them
  std::vector<Pending> sent_;
};

}  // namespace lt2
