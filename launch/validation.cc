#include "launch/validation.h"

#include <algorithm>

#include "core/status_macros.h"
#include "parallel/reduce_scalars.h"

namespace lt2 {
namespace {

// Rows that count for nothing, so that a last group fills a micro-batch.
void Pad(int64_t rows, int64_t sequence, Batch* batch) {
  for (; batch->rows < rows; ++batch->rows) {
    batch->ids.insert(batch->ids.end(), sequence, 0);
    batch->targets.insert(batch->targets.end(), sequence, kIgnoredTarget);
    batch->cu_seqlens.push_back(static_cast<int32_t>(batch->ids.size()));
  }
}

}  // namespace

absl::StatusOr<std::optional<double>> ValidationLoss(const Loader& loader, int64_t windows,
                                                     TrainStep& step, const Mesh& mesh,
                                                     const RankGroups& groups,
                                                     const std::function<bool()>& progress) {
  const int64_t rows = step.options().micro_batch;
  const int64_t all =
      windows > 0 ? std::min(windows, loader.valid_windows()) : loader.valid_windows();
  TrainStep::Score score;
  step.optimizer().WaitForValues();  // all ranks, also one that has no rows
  // In a round every replica has as many batches as there are stages to work on them, or what is
  // left.
  const int64_t round = mesh.pp * mesh.dp * rows;
  for (int64_t begin = 0; begin < all; begin += round) {
    std::vector<Batch> batches;
    const int64_t end = std::min(begin + round, all);
    for (int64_t first = begin + groups.dp * rows; first < end; first += mesh.dp * rows) {
      Batch& batch = batches.emplace_back();
      RETURN_IF_ERROR(loader.ReadValid(first, std::min(rows, all - first), &batch));
      Pad(rows, loader.sequence(), &batch);
    }
    double stop = progress() ? 0 : 1;
    ReduceScalars(*groups.world, {}, std::span(&stop, 1));
    if (stop > 0) return std::nullopt;
    if (batches.empty()) continue;
    const TrainStep::Score part = step.Evaluate(batches);
    score.nll += part.nll;
    score.counted += part.counted;
  }
  if (groups.tp->rank() > 0) score = {};  // counted by the first of them
  double sums[] = {score.nll, score.counted};
  ReduceScalars(*groups.world, sums, {});
  return sums[0] / std::max(sums[1], 1.0);
}

}  // namespace lt2
