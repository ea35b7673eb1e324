// An identity that shows the gradient as it passes: for norms of gradients between loops.
#pragma once

#include <functional>

#include "core/tape.h"

namespace lt2 {

// The value is x itself. on_gradient is called once, inside Backward, if a gradient arrives.
Var Probe(Tape& tape, Var x, std::function<void(const Tensor& dy)> on_gradient);

}  // namespace lt2
