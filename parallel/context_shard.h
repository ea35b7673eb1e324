// This rank's tokens of a row that a context-parallel group shares.
//
// Linear mixers hand states on (link()); convolutions and windows read some tokens to the left,
// attention all of them (context()). Everything that depends on documents lies in device memory
// and has a fixed size, so that a recorded step may be repeated with others.
#pragma once

#include <array>
#include <map>
#include <memory>

#include "kernels/documents.h"
#include "parallel/communicator.h"
#include "parallel/reduce_scalars.h"
#include "parallel/state_passing.h"
#include "parallel/token_row.h"

namespace lt2 {

class ContextShard {
 public:
  // A row of `row_tokens` tokens, at least one a rank, with at most `max_documents` documents. The
  // communicator must outlive it.
  ContextShard(Communicator& cp, int64_t row_tokens, int64_t max_documents, Device device,
               StateExchange exchange = StateExchange::kAuto);
  ContextShard(const ContextShard&) = delete;

  // cu_seqlens of the whole row, the same on every rank.
  void Fill(std::span<const int32_t> cu_seqlens);

  Communicator& cp() const { return cp_; }
  int64_t begin() const { return Begin(cp_.rank()); }
  int64_t tokens() const { return Begin(cp_.rank() + 1) - begin(); }
  int64_t row_tokens() const { return row_tokens_; }
  int64_t Begin(int rank) const { return ShardBegin(row_tokens_, cp_.size(), rank); }

  // Of the tokens here. Positions count from a document's start, wherever that is.
  const Documents& documents() const { return documents_; }
  StateLink& link() { return link_; }

  // The tokens here, which are the queries, and up to `reach` before them; how many those are on a
  // rank.
  const Documents& context(int64_t reach);
  // What GatherTokens brings: all tokens of the row, or where ranks take turns those up to the last
  // one here. The queries are those here.
  const Documents& row() {
    const int64_t end = begin() + tokens();
    return DocumentsOf(0, cp_.in_turn() ? end : row_tokens_, begin(), end);
  }

  // For queries that are shared out so that all ranks see as many keys (RowAttention): the first
  // half() of a rank's tokens stay with it, the others go to mirror(). All tokens of the row; the
  // queries are the first half here, or the second half there.
  int mirror() const { return cp_.size() - 1 - cp_.rank(); }
  int64_t half() const { return Half(cp_.rank()); }
  // Whether that is to be done: there is somebody to share with, and no half is empty.
  bool halves() const { return cp_.size() > 1 && row_tokens_ >= 2 * cp_.size() && !cp_.in_turn(); }
  const Documents& first_half() { return DocumentsOf(0, row_tokens_, begin(), begin() + half()); }
  const Documents& mirrored_half() {
    return DocumentsOf(0, row_tokens_, Begin(mirror()) + Half(mirror()), Begin(mirror() + 1));
  }
  // Sums of the host over all ranks; every rank calls it.
  void SumOverRow(std::span<double> sums) const { ReduceScalars(cp_, sums, {}); }

  int64_t Halo(int64_t reach) const { return Halo(reach, cp_.rank()); }
  int64_t Halo(int64_t reach, int rank) const { return std::min(reach, Begin(rank)); }

 private:
  int64_t Half(int rank) const { return (Begin(rank + 1) - Begin(rank) + 1) / 2; }
  // Documents of tokens [first, last) of the row with queries [begin, end), made once and filled
  // with every Fill.
  const Documents& DocumentsOf(int64_t first, int64_t last, int64_t begin, int64_t end);

  Communicator& cp_;
  const int64_t row_tokens_, max_documents_;
  const Device device_;
  Documents documents_;
  StatePassing link_;
  std::map<std::array<int64_t, 4>, Documents> parts_;  // of the row, by DocumentsOf's arguments
  std::vector<int32_t> cu_seqlens_;
};

}  // namespace lt2
