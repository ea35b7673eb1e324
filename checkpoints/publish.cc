#include "checkpoints/publish.h"

#include <filesystem>

#include "core/file.h"
#include "core/status_macros.h"
#include "core/strings.h"

namespace lt2 {

absl::Status PublishFolder(const std::string& to, std::string_view id,
                           const std::function<absl::Status(const std::string& folder)>& fill) {
  FileSystem& system = FileSystem::Get();
  std::string name = to;
  while (name.size() > 1 && name.ends_with('/')) name.pop_back();
  if (system.Exists(name)) {
    return absl::InvalidArgumentError(StrCat(name, ": exists already; choose another name"));
  }
  const std::string temporary = StrCat(name, ".tmp-", id);
  absl::Status status = system.MakeDirectories(temporary);
  if (status.ok()) status = fill(temporary);
  if (status.ok()) status = system.Rename(temporary, name);
  if (!status.ok()) {
    system.RemoveAll(temporary).IgnoreError();  // the first failure is the one to tell
    return status;
  }
  const std::string parent = std::filesystem::path(name).parent_path();
  return system.Sync(parent.empty() ? "." : parent);
}

}  // namespace lt2
