#include "parallel/grad_norm.h"

#include <algorithm>

#include "kernels/squared_norm.h"

namespace lt2 {

void SquaredNorms(Stream& stream, std::span<const Tensor> gradients, const Tensor& sums) {
  CHECK_EQ(sums.size(), static_cast<int64_t>(gradients.size()));
  for (size_t i = 0; i < gradients.size(); ++i) {
    const int64_t at = static_cast<int64_t>(i);
    SquaredNorm(stream, {.x = gradients[i], .sum = sums.Rows(at, at + 1)});
  }
}

double ClipFactor(double norm, double limit) {
  return limit > 0 ? std::min(1.0, limit / (norm + 1e-6)) : 1.0;
}

void ReduceScalars(Communicator& communicator, std::span<double> sums, std::span<double> maxes) {
  const int ranks = communicator.size();
  if (ranks == 1) return;
  const int64_t each = static_cast<int64_t>(sums.size() + maxes.size());
  Tensor all = Tensor::Empty({ranks, each}, DType::kF64, {});
  double* const rows = all.data<double>();
  double* const mine = rows + communicator.rank() * each;
  std::copy(maxes.begin(), maxes.end(), std::copy(sums.begin(), sums.end(), mine));
  communicator.AllGather(all, std::vector<int64_t>(ranks, each), "step_scalars");
  for (int r = 0; r < ranks; ++r) {
    const double* row = rows + r * each;
    for (double& sum : sums) sum = r == 0 ? *row++ : sum + *row++;
    for (double& max : maxes) {
      max = r == 0 ? *row : std::max(max, *row);
      ++row;
    }
  }
}

}  // namespace lt2
