// The ranks that share a host.
#pragma once

#include <memory>

#include "parallel/communicator.h"

namespace lt2 {

// A group of those of `world` that run on this rank's host, in their order. Collective.
std::unique_ptr<Communicator> MakeHostGroup(Communicator& world);

}  // namespace lt2
