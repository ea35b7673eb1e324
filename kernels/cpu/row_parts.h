// The rows of keys and values of each document, cut into parts: in a backward pass one thread at a
// time owns a part, so that rows are summed in one order. Parts depend on lengths alone.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels/documents.h"

namespace lt2::cpu {

struct RowPart {
  int64_t document, low, high;  // rows [low, high) of those of the document
  bool whole;                   // there is no other part of the document
};

inline constexpr int64_t kMostParts = 16;  // of a document

// rows(length): of a document of that length. Parts hold at least `least` rows, if there are.
template <class Rows>
std::vector<RowPart> PartsOf(const Documents& documents, const Rows& rows, int64_t least) {
  const int32_t* cu = documents.cu_seqlens().data<int32_t>();
  std::vector<RowPart> parts;
  for (int64_t d = 0; d < documents.count(); ++d) {
    const int64_t count = rows(cu[d + 1] - cu[d]);
    const int64_t step = std::max(least, (count + kMostParts - 1) / kMostParts);
    for (int64_t low = 0; low == 0 || low < count; low += step) {
      parts.push_back({d, low, std::min(count, low + step), count <= step});
    }
  }
  return parts;
}

// The queries among some tokens; perhaps none: begin >= end.
inline TokenRange QueriesIn(const Documents& documents, TokenRange tokens) {
  return {std::max(tokens.begin, documents.query_begin()),
          std::min(tokens.end, documents.query_end())};
}

// Rows [begin, end) of head g, where they are wanted.
template <class T>
void ZeroRows(const Tensor& x_NGD, int64_t begin, int64_t end, int64_t g) {
  if (!x_NGD.defined()) return;
  const int64_t G = x_NGD.dim(1), D = x_NGD.dim(2);
  for (int64_t n = begin; n < end; ++n) std::fill_n(x_NGD.data<T>() + (n * G + g) * D, D, T(0));
}

}  // namespace lt2::cpu
