// Operators whose parameter is divided among ranks, run as one of them, on any device.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kernels/head_loss.h"
#include "kernels/rank_link.h"

namespace lt2 {

// The p-th of `parts` parts of a parameter, of which `link` knows the others; null: all of it.
struct Part {
  Device device;
  DType dtype = DType::kF64;
  RankLink* link = nullptr;
  int rank() const { return link == nullptr ? 0 : link->rank(); }
  int size() const { return link == nullptr ? 1 : link->size(); }
};

// y: what every rank has alike, a summand, or columns, as the operator gives it; dx likewise.
struct Outcome {
  std::vector<double> y, dx, dw;
};

struct HeadProblem {
  int64_t N = 70, D = 8, V = 130;
  int64_t chunk_rows = 16;
  bool keep = true, known = false, per_token = false;
  bool told_of_others = true;          // whether the operator is given the link
  double scale = 1;                    // of w
  std::vector<int64_t> nan_rows = {};  // of w
  std::vector<int64_t> nan_tokens = {};
  std::string ToString() const;
};
Outcome RunHeadLoss(const HeadProblem& problem, const Part& part);

struct EmbeddingProblem {
  int64_t N = 60, V = 19, D = 8;
};
Outcome RunEmbedding(const EmbeddingProblem& problem, const Part& part);

struct NormProblem {
  int64_t N = 40, C = 48;  // all channels
  double scale = 1;
};
Outcome RunSplitRmsNorm(const NormProblem& problem, const Part& part);

// Columns [begin, end) of x [rows, columns].
std::vector<double> Columns(const std::vector<double>& x, int64_t columns, int64_t begin,
                            int64_t end);

}  // namespace lt2
