#include "checkpoints/assemble.h"

#include <unistd.h>

#include <chrono>

#include "absl/strings/str_format.h"
#include "checkpoints/index_file.h"
#include "core/file.h"
#include "core/hash.h"
#include "core/status_macros.h"
#include "core/strings.h"

namespace lt2 {

std::string MakeCheckpointId(const std::string& place, int64_t step) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const int64_t nanoseconds = std::chrono::nanoseconds(now).count();
  return absl::StrFormat("%016x",
                         Hash64(StrCat(place, "/", getpid(), "/", nanoseconds, "/", step)));
}

absl::StatusOr<int64_t> Assemble(const std::string& directory, const CheckpointInfo& info,
                                 std::span<const ShardContent> shards) {
  ASSIGN_OR_RETURN(Manifest manifest, MergeShards(info, shards));
  ASSIGN_OR_RETURN(StoredFile index, WriteIndex(directory, manifest));
  manifest.files.push_back(std::move(index));
  const std::string path = JoinPath(directory, kManifestFile);
  RETURN_IF_ERROR(FileSystem::Get().WriteFile(path, ToJson(manifest)));
  RETURN_IF_ERROR(FileSystem::Get().Sync(directory));
  return manifest.bytes();
}

}  // namespace lt2
