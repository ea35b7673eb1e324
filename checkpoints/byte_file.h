// Positional reads of a file, and the hash of what lies between its boxes.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lt2 {

// Open for reading until destroyed; safe from several threads.
class ByteFile {
 public:
  static absl::StatusOr<ByteFile> Open(const std::string& path);
  ByteFile(ByteFile&& other) noexcept;
  ByteFile& operator=(ByteFile&& other) noexcept;
  ~ByteFile();

  const std::string& path() const { return path_; }
  int64_t size() const { return size_; }
  // Fills `to` from byte `offset`; DataLoss if the file ends before.
  absl::Status Read(int64_t offset, std::span<std::byte> to) const;
  // Asks the system to forget what it holds of the file in memory: the next read meets the disk.
  void DropCache() const;

 private:
  ByteFile(std::string path, int descriptor, int64_t size);

  std::string path_;
  int descriptor_ = -1;
  int64_t size_ = 0;
};

struct ByteRange {
  int64_t offset = 0;
  int64_t bytes = 0;
};

// Hash128 of all bytes outside `ranges` (ordered by offset), in order; DataLoss if they overlap or
// reach beyond the file.
absl::StatusOr<std::string> FrameHash(const ByteFile& file, std::span<const ByteRange> ranges);

}  // namespace lt2
