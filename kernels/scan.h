// What the scans over a recurrent state share.
#pragma once

#include "core/tape.h"

namespace lt2 {

// A gradient to write, or to add to; nobody wants it where `to` is undefined.
struct GradInto {
  GradInto() = default;
  explicit GradInto(GradSlot& slot) : accumulate(slot.accumulate()), to(slot.to()) {}

  bool accumulate = false;  // asked before to() makes the memory
  Tensor to;
};

struct ScanOutputs {
  Var o_NGV;
  Var final_state_DGKV;  // undefined unless wanted
};

}  // namespace lt2
