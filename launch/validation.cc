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

absl::StatusOr<double> ValidationLoss(const Loader& loader, int64_t windows, TrainStep& step,
                                      const Mesh& mesh, const RankGroups& groups,
                                      const std::function<void()>& progress) {
  const int64_t rows = step.options().micro_batch;
  const int64_t all =
      windows > 0 ? std::min(windows, loader.valid_windows()) : loader.valid_windows();
  TrainStep::Score score;
  step.optimizer().WaitForValues();  // all ranks, also one that has no rows
  std::vector<Batch> batches;        // as many as there are stages to work on them
  const auto evaluate = [&] {
    progress();
    const TrainStep::Score part = step.Evaluate(batches);
    score.nll += part.nll;
    score.counted += part.counted;
    batches.clear();
  };
  for (int64_t first = groups.dp * rows; first < all; first += mesh.dp * rows) {
    RETURN_IF_ERROR(loader.ReadValid(first, std::min(rows, all - first), &batches.emplace_back()));
    Pad(rows, loader.sequence(), &batches.back());
    if (static_cast<int>(batches.size()) == mesh.pp) evaluate();
  }
  if (!batches.empty()) evaluate();
  if (groups.tp->rank() > 0) score = {};  // counted by the first of them
  double sums[] = {score.nll, score.counted};
  ReduceScalars(*groups.world, sums, {});
  return sums[0] / std::max(sums[1], 1.0);
}

}  // namespace lt2
