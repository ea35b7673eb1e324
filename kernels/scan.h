// What the scans over a recurrent state share.
#pragma once

#include "core/tape.h"
#include "kernels/documents.h"

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

// Zero for documents that are not there, in x [D, …] or where there is no gradient yet; host only.
inline void ZeroAbsent(const Tensor& x, const Documents& documents) {
  if (x.defined() && documents.count() < documents.capacity()) {
    x.Rows(documents.count(), documents.capacity()).Zero();
  }
}
inline void ZeroAbsent(const GradInto& grad, const Documents& documents) {
  if (!grad.accumulate) ZeroAbsent(grad.to, documents);
}

}  // namespace lt2
