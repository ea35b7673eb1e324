// Mean loss over the validation windows, dealt among the data-parallel ranks.
#pragma once

#include <functional>
#include <optional>

#include "absl/status/statusor.h"
#include "launch/train_step.h"

namespace lt2 {

// Over the first `windows` validation windows (0: all), in nats per counted token, summed in
// float64. Collective over all ranks. A read error is this rank's own: the others wait for it.
// `progress` is called before each batch and says whether to go on: where it says no on any rank
// all end without a loss.
absl::StatusOr<std::optional<double>> ValidationLoss(const Loader& loader, int64_t windows,
                                                     TrainStep& step, const Mesh& mesh,
                                                     const RankGroups& groups,
                                                     const std::function<bool()>& progress);

}  // namespace lt2
