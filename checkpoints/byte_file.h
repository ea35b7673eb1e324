// Positional reads and writes of a file, and the hash of what lies between its boxes.
#pragma once

#include <atomic>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/hash.h"

namespace lt2 {

// Open until destroyed; safe from several threads.
class ByteFile {
 public:
  static absl::StatusOr<ByteFile> Open(const std::string& path);  // for reading
  // For writing beside others; made if it is not there, never cut.
  static absl::StatusOr<ByteFile> OpenToWrite(const std::string& path);
  ByteFile(ByteFile&& other) noexcept;
  ByteFile& operator=(ByteFile&& other) noexcept;
  ~ByteFile();

  const std::string& path() const { return path_; }
  int64_t size() const { return size_; }
  // Fills `to` from byte `offset`; DataLoss if the file ends before.
  absl::Status Read(int64_t offset, std::span<std::byte> to) const;
  // ResourceExhausted if there is no space left. The disk begins to take it, beside what the caller
  // does; synced is only what FileSystem::Sync has synced.
  absl::Status Write(int64_t offset, std::span<const std::byte> from) const;
  // Asks the system to forget what it holds of the file in memory: the next read meets the disk.
  void DropCache() const;
  int64_t bytes_read() const { return bytes_read_; }

 private:
  static absl::StatusOr<ByteFile> OpenFor(int flags, const std::string& path);
  ByteFile(std::string path, int descriptor, int64_t size);

  std::string path_;
  int descriptor_ = -1;
  int64_t size_ = 0;
  mutable std::atomic<int64_t> bytes_read_ = 0;
};

struct ByteRange {
  int64_t offset = 0;
  int64_t bytes = 0;
  bool operator==(const ByteRange&) const = default;
};

// Adds a range's bytes to `hasher`, reading a bounded piece at a time.
absl::Status HashRange(const ByteFile& file, ByteRange range, Hasher128& hasher);
// What lies outside `ranges` (ordered by offset), in order; DataLoss if they overlap or reach
// beyond the file.
absl::StatusOr<std::vector<ByteRange>> FrameRanges(const ByteFile& file,
                                                   std::span<const ByteRange> ranges);
// Hash128 of all these bytes.
absl::StatusOr<std::string> FrameHash(const ByteFile& file, std::span<const ByteRange> ranges);
// Writes these bytes to the same places of another file.
absl::Status CopyFrame(const ByteFile& from, std::span<const ByteRange> ranges, const ByteFile& to);

}  // namespace lt2
