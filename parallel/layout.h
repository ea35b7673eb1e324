// Who holds, reduces, updates and saves which part of which parameter: one pure function, and the
// only place that cuts parameters. Everything else iterates over its result.
//
// A rank holds a box of each parameter, by its place along tp. What it holds lies in buckets, in
// reverse order of first use (the order in which gradients are complete). All parameters of a
// bucket have the same holders: the ranks among which their gradients are summed. A bucket is one
// flat buffer; the holders' shards are contiguous ranges of it that fill it, cut between rows of
// parameters: so a reduce-scatter needs no packing, and every part of a shard is a box of a logical
// tensor. Where a little padding at a bucket's end makes its shards equal it is added: collectives
// of equal shards are the fastest.
#pragma once

#include <span>
#include <vector>

#include "core/box.h"
#include "core/param.h"
#include "parallel/mesh.h"

namespace lt2 {

struct LayoutOptions {
  // A bucket is closed when it holds this many elements; 0: an eighth of all, at least 65,536 and
  // at most 4,194,304, so that reductions overlap with the backward of models of any size.
  int64_t bucket_elements = 0;
  // Cut between parameters only, for update rules that need whole matrices.
  bool whole_parameters = false;
  // Of ranks that share a row of tokens only the first owns anything, so that norms add up in the
  // same order for any number of them.
  bool first_of_row = false;
};

// Rows of what is held of a parameter that one rank owns: it updates (ZeRO >= 1), counts in norms
// and saves them.
struct OwnedPiece {
  int rank = 0;        // among the holders
  Box box;             // never empty
  int64_t offset = 0;  // in the held box, in elements
};

struct LayoutEntry {
  int param = 0;  // index into the specs
  int bucket = 0;
  int64_t offset = 0;              // in the bucket's buffer, in elements
  Box held;                        // what this rank keeps of the value
  std::vector<OwnedPiece> owners;  // by rank; they tile `held`
};

struct Bucket {
  int copies = 1;              // its holders are RankGroups::Holders(copies, across_stages)
  bool across_stages = false;  // of parameters that every pipeline stage holds
  // False where other holders have the same parameters and gradients, and count and save them.
  bool counted = true;
  std::vector<int> params;            // in order of offset
  int64_t elements = 0;               // with padding
  std::vector<int64_t> shard_counts;  // elements each holder owns; they add up to `elements`
};

struct LayoutTable {
  int zero = 0;
  std::vector<LayoutEntry> entries;  // by parameter
  // In the order in which their gradients are complete, which is the same on every rank.
  std::vector<Bucket> buckets;
};

inline Communicator& HoldersOf(const Bucket& bucket, const RankGroups& groups) {
  return groups.Holders(bucket.copies, bucket.across_stages);
}

// What a rank holds of a parameter by its place among tp ranks.
Box HeldBox(const ParamSpec& spec, int tp, int tp_rank);

// specs: of this rank's pipeline stage, in order of first use. Offsets are multiples of 16 elements
// (a cache line), so that padding between parameters belongs to the buffer too; nobody reads it.
LayoutTable Layout(std::span<const ParamSpec> specs, const Mesh& mesh, int zero,
                   const LayoutOptions& options = {}, int tp_rank = 0);

}  // namespace lt2
