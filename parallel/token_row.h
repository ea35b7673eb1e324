// How a row of tokens is cut among the ranks of a context-parallel group, and what each knows of
// the documents in it: the only place that derives it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace lt2 {

// Where rank `rank`'s tokens of a row begin, and where those of rank - 1 end. Shards are contiguous
// and differ by at most one token.
inline int64_t ShardBegin(int64_t tokens, int ranks, int rank) { return tokens * rank / ranks; }

// Documents as seen from tokens [begin, end) of a row.
struct RowPart {
  int64_t begin = 0, end = 0;
  std::vector<int32_t> cu_seqlens;  // counted from begin: 0 first, end - begin last
  int64_t first_position = 0;       // of token `begin` in its document
  // The first document began before the range.
  bool continues() const { return first_position > 0; }
  // All tokens are of one document.
  bool spans() const { return cu_seqlens.size() == 2; }
  int64_t tokens() const { return end - begin; }
};
// cu_seqlens: of the row, 0 first. The range is not empty.
RowPart PartOf(std::span<const int32_t> cu_seqlens, int64_t begin, int64_t end);

}  // namespace lt2
