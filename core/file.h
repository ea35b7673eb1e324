// The file-system seam: whole-file reads, durable writes, publish by rename, listing.
//
// Errors are Status with the path in the message: NotFound, ResourceExhausted (no space left),
// PermissionDenied, InvalidArgument (a folder where a file is needed, a name too long), else
// Internal. Tests install a faulty one.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lt2 {

// Bytes of a text that a user names: a device or a pipe in its place may have no end.
constexpr int64_t kMostText = 100'000'000;

class FileSystem {
 public:
  virtual ~FileSystem() = default;
  // The one in use: the machine's own unless a test replaced it.
  static FileSystem& Get();
  static void Replace(FileSystem* other);  // nullptr restores the machine's own

  // InvalidArgument where the file has more than `most` bytes.
  virtual absl::StatusOr<std::string> ReadFile(const std::string& path, int64_t most) = 0;
  absl::StatusOr<std::string> ReadFile(const std::string& path) {
    return ReadFile(path, std::numeric_limits<int64_t>::max());
  }
  // Creates or replaces, and syncs to disk. Not atomic: write to a temporary name, then Rename.
  virtual absl::Status WriteFile(const std::string& path, std::string_view content) = 0;
  // Appends and flushes to the kernel (metrics survive a killed process).
  virtual absl::Status AppendFile(const std::string& path, std::string_view content) = 0;
  virtual absl::Status Rename(const std::string& from, const std::string& to) = 0;
  // Syncs a file's or directory's content to disk.
  virtual absl::Status Sync(const std::string& path) = 0;
  virtual absl::Status MakeDirectories(const std::string& path) = 0;
  virtual absl::Status RemoveAll(const std::string& path) = 0;
  virtual absl::StatusOr<std::vector<std::string>> List(
      const std::string& directory) = 0;  // sorted
  virtual bool Exists(const std::string& path) = 0;
  virtual bool IsDirectory(const std::string& path) = 0;
  virtual absl::StatusOr<int64_t> FileSize(const std::string& path) = 0;
};

// Writes to "<path>.tmp", syncs, renames over path: readers see the old or the new content.
absl::Status WriteFileAtomically(const std::string& path, std::string_view content);
std::string JoinPath(std::string_view directory, std::string_view name);
// "<path>.tmp-" and digits that no other process, on whatever host, and no later call chooses.
std::string TemporaryName(std::string_view path);
// A Status for errno, naming what was tried and the path.
absl::Status ErrnoStatus(int error, std::string_view what, std::string_view path);

}  // namespace lt2
