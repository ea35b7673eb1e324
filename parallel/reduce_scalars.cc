#include "parallel/reduce_scalars.h"

#include <algorithm>

namespace lt2 {

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
