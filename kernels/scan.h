// What the scans over a recurrent state share.
#pragma once

#include <algorithm>
#include <initializer_list>

#include "core/tape.h"
#include "kernels/documents.h"
#include "kernels/state_link.h"

namespace lt2 {

// A gradient to write, or to add to; nobody wants it where `to` is undefined.
struct GradInto {
  GradInto() = default;
  explicit GradInto(GradSlot& slot) : accumulate(slot.accumulate()), to(slot.to()) {}

  bool accumulate = false;  // asked before to() makes the memory
  Tensor to;
};

inline bool AnyWanted(std::initializer_list<const GradInto*> gradients) {
  return std::ranges::any_of(gradients, [](const GradInto* g) { return g->to.defined(); });
}

struct ScanOutputs {
  Var o_NGV;
  Var final_state_DGKV;  // undefined unless wanted
};

// States of documents, [D, …], or [1, …]: of initial states that of the first document alone, of
// final ones that of the last; the others' are zero, or not wanted.
enum class FinalStates { kNone, kLast, kAll };

// Where in such a tensor the document's state is; -1: nowhere.
inline int64_t InitialRow(const Tensor& x, int64_t document) {
  if (!x.defined()) return -1;
  return x.dim(0) > 1 || document == 0 ? document : -1;
}
inline int64_t FinalRow(const Tensor& x, const Documents& documents, int64_t document) {
  if (!x.defined()) return -1;
  if (x.dim(0) == documents.capacity() && x.dim(0) > 1) return document;
  return document == documents.count() - 1 ? 0 : -1;
}

// How many states a scan makes.
inline int64_t FinalRows(FinalStates wanted, const Documents& documents) {
  return wanted == FinalStates::kAll ? documents.capacity() : 1;
}

// Zero for documents that are not there, in x [D, …] or where there is no gradient yet; host only.
inline void ZeroAbsent(const Tensor& x, const Documents& documents) {
  if (x.defined() && x.dim(0) > documents.count()) {
    x.Rows(documents.count(), x.dim(0)).Zero();
  }
}
inline void ZeroAbsent(const GradInto& grad, const Documents& documents) {
  if (!grad.accumulate) ZeroAbsent(grad.to, documents);
}

}  // namespace lt2
