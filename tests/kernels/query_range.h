// Queries that are a part of the tokens, as under context parallelism: rows of queries are those of
// the whole, and gradients of keys, summed over a partition of the queries, too.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/tape.h"
#include "kernels/documents.h"

namespace lt2 {

using Tensors = std::vector<Tensor>;
using Vars = std::vector<Var>;

// What an operator makes of queries and keys. `sums` add up over queries; `rows` are of each.
struct Made {
  Vars differentiable;  // rows, or F64 [1]
  Tensors rows, sums;
};

// Random documents, with a row for each token.
struct RangeProblem {
  RangeProblem(uint64_t seed, std::vector<int32_t> cu, Device device, DType dtype)
      : seed(seed), device(device), dtype(dtype), cu(std::move(cu)) {}

  uint64_t seed;
  Device device;
  DType dtype;
  std::vector<int32_t> cu;
  int64_t tokens_before = 0;  // of the row that cotangents are of
  Tensors of_queries, of_keys;
  std::function<Made(Tape&, const Vars& of_queries, const Vars& of_keys, const Documents&)> op;

  int64_t tokens() const { return cu.back(); }
  Tensor Random(const std::string& name, const Shape& shape, double scale = 1) const;
};

struct RangeOperator {
  const char* name;
  RangeProblem (*problem)(uint64_t seed, Device device, DType dtype);
  uint64_t seeds;  // below this one
};
const std::vector<RangeOperator>& AllRangeOperators();

struct RangeTolerance {
  double outputs, gradients;
};
// Expects of parts on the device what the reference has of the whole.
void ExpectPartsMakeTheWhole(const RangeOperator& of, Device device, DType dtype,
                             const RangeTolerance& tolerance);
// On a GPU: a graph that was recorded once gives the bits that its work gives unrecorded.
void ExpectReplaysSeeTheDocumentsOfNow(const RangeOperator& of, Device device, DType dtype);
// Tokens of a window's length before the queries, and none behind them, are enough.
void ExpectAWindowNeedsNoMore(Device device, DType dtype, const RangeTolerance& tolerance);

std::vector<int32_t> RandomDocuments(uint64_t seed, int64_t most_tokens);
std::vector<TokenRange> RandomPartition(uint64_t seed, int64_t tokens);

}  // namespace lt2
