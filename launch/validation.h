// Mean loss over the validation windows, dealt among the data-parallel ranks.
#pragma once

#include <functional>

#include "absl/status/statusor.h"
#include "launch/train_step.h"

namespace lt2 {

// Over the first `windows` validation windows (0: all), in nats per counted token, summed in
// float64. Collective over the replicas. A read error is this rank's own: the others wait for it.
// `progress` is called before each batch.
absl::StatusOr<double> ValidationLoss(const Loader& loader, int64_t windows, TrainStep& step,
                                      const Mesh& mesh, const RankGroups& groups,
                                      const std::function<void()>& progress);

}  // namespace lt2
