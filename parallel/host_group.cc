#include "parallel/host_group.h"

#include <algorithm>

namespace lt2 {

std::unique_ptr<Communicator> MakeHostGroup(Communicator& world) {
  const std::vector<std::string> hosts = world.GatherStrings(world.host());
  const auto first = std::find(hosts.begin(), hosts.end(), world.host());
  return world.Split(static_cast<int>(first - hosts.begin()), world.rank(), "host");
}

}  // namespace lt2
