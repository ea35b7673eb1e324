// How a group of ranks comes to one result: statuses and text travel through the communicator.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "parallel/communicator.h"

namespace lt2 {

// Every rank gets every rank's result, in rank order. Collective.
std::vector<absl::StatusOr<std::string>> GatherResults(Communicator& group,
                                                       const absl::StatusOr<std::string>& mine);
// Every rank gets rank 0's result. Collective.
absl::StatusOr<std::string> BroadcastResult(Communicator& group,
                                            const absl::StatusOr<std::string>& result);

}  // namespace lt2
