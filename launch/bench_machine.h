// Measures what plans are made from: the machine that this runs on.
#pragma once

#include "launch/machine.h"
#include "parallel/communicator.h"

namespace lt2 {

// In one precision: products and copies of several sizes, every operator's share of what those
// would allow, and with several ranks collectives. Ranks measure at once, as they will work.
// `world` of one rank: links are guessed, and `source` says so. Collective.
absl::StatusOr<Machine> MeasureMachine(Device device, Precision precision, Communicator& world,
                                       int repeats);

}  // namespace lt2
