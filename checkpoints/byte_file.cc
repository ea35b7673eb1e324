#include "checkpoints/byte_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>
#include <vector>

#include "core/file.h"
#include "core/hash.h"
#include "core/status_macros.h"
#include "core/strings.h"

namespace lt2 {

absl::StatusOr<ByteFile> ByteFile::Open(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return ErrnoStatus(errno, "cannot open", path);
  struct stat status;
  if (fstat(descriptor, &status) != 0) {
    const int error = errno;
    close(descriptor);
    return ErrnoStatus(error, "cannot inspect", path);
  }
  return ByteFile(path, descriptor, status.st_size);
}

ByteFile::ByteFile(std::string path, int descriptor, int64_t size)
    : path_(std::move(path)), descriptor_(descriptor), size_(size) {}

ByteFile::ByteFile(ByteFile&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      size_(other.size_) {}

ByteFile& ByteFile::operator=(ByteFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(size_, other.size_);
  return *this;
}

ByteFile::~ByteFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

absl::Status ByteFile::Read(int64_t offset, std::span<std::byte> to) const {
  while (!to.empty()) {
    const ssize_t got = pread(descriptor_, to.data(), to.size(), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoStatus(errno, "cannot read", path_);
    if (got == 0) {
      return absl::DataLossError(StrCat(path_, ": ends at byte ", offset, ", ", to.size(),
                                        " bytes short of what is stored there"));
    }
    to = to.subspan(got);
    offset += got;
  }
  return absl::OkStatus();
}

void ByteFile::DropCache() const { posix_fadvise(descriptor_, 0, 0, POSIX_FADV_DONTNEED); }

absl::StatusOr<std::string> FrameHash(const ByteFile& file, std::span<const ByteRange> ranges) {
  std::vector<std::byte> frame;
  const auto add = [&](int64_t first, int64_t last) -> absl::Status {
    if (last < first) {
      return absl::DataLossError(
          StrCat(file.path(), ": boxes overlap or reach beyond its end near byte ", last));
    }
    frame.resize(frame.size() + (last - first));
    return file.Read(first, std::span(frame).last(last - first));
  };
  int64_t at = 0;
  for (const ByteRange& range : ranges) {
    RETURN_IF_ERROR(add(at, range.offset));
    at = range.offset + range.bytes;
  }
  RETURN_IF_ERROR(add(at, file.size()));
  return Hash128(frame);
}

}  // namespace lt2
