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
// The same for texts without NUL.
absl::StatusOr<std::vector<std::string>> BroadcastList(
    Communicator& group, const absl::StatusOr<std::vector<std::string>>& list);
// Every rank gets everyone's texts, without NUL, in rank order. Collective.
std::vector<std::string> GatherList(Communicator& group, const std::vector<std::string>& mine);
// Every rank's status as one: OK, or the first failing rank's error, the same on every rank; it
// names the rank and its host unless all failed alike. Collective.
absl::Status Agree(Communicator& group, const absl::Status& status);

}  // namespace lt2
