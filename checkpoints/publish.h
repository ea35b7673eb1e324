// A new folder that is whole or absent, whenever the program is killed.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace lt2 {

// Makes the folder TO.tmp-ID, lets `fill` write and sync what belongs in it, and renames it to
// `to`. InvalidArgument if `to` exists; after any failure, `fill`'s too, nothing is left.
absl::Status PublishFolder(const std::string& to, std::string_view id,
                           const std::function<absl::Status(const std::string& folder)>& fill);

}  // namespace lt2
