#include "checkpoints/byte_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "core/file.h"
#include "core/hash.h"
#include "core/status_macros.h"
#include "core/strings.h"

namespace lt2 {
namespace {

// Reads a range in pieces of bounded size, which `use` gets with their offsets.
template <class Use>
absl::Status ForEachPiece(const ByteFile& file, ByteRange range, const Use& use) {
  constexpr int64_t kPiece = 1 << 20;
  std::vector<std::byte> buffer(std::min(range.bytes, kPiece));
  while (range.bytes > 0) {
    const auto piece = std::span(buffer).first(std::min(range.bytes, kPiece));
    RETURN_IF_ERROR(file.Read(range.offset, piece));
    RETURN_IF_ERROR(use(range.offset, std::span<const std::byte>(piece)));
    range.offset += static_cast<int64_t>(piece.size());
    range.bytes -= static_cast<int64_t>(piece.size());
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ByteFile> ByteFile::Open(const std::string& path) { return OpenFor(O_RDONLY, path); }

absl::StatusOr<ByteFile> ByteFile::OpenToWrite(const std::string& path) {
  return OpenFor(O_WRONLY | O_CREAT, path);
}

absl::StatusOr<ByteFile> ByteFile::OpenFor(int flags, const std::string& path) {
  const int descriptor = open(path.c_str(), flags | O_CLOEXEC, 0666);
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
      size_(other.size_),
      bytes_read_(other.bytes_read()) {}

ByteFile& ByteFile::operator=(ByteFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(size_, other.size_);
  bytes_read_ = other.bytes_read_.exchange(bytes_read_);
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
    bytes_read_.fetch_add(got, std::memory_order_relaxed);
    to = to.subspan(got);
    offset += got;
  }
  return absl::OkStatus();
}

absl::Status ByteFile::Write(int64_t offset, std::span<const std::byte> from) const {
  const int64_t begin = offset;
  while (!from.empty()) {
    const ssize_t put = pwrite(descriptor_, from.data(), from.size(), offset);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return ErrnoStatus(errno, "cannot write", path_);
    from = from.subspan(put);
    offset += put;
  }
  sync_file_range(descriptor_, begin, offset - begin, SYNC_FILE_RANGE_WRITE);  // a hint
  return absl::OkStatus();
}

void ByteFile::DropCache() const { posix_fadvise(descriptor_, 0, 0, POSIX_FADV_DONTNEED); }

absl::Status HashRange(const ByteFile& file, ByteRange range, Hasher128& hasher) {
  return ForEachPiece(file, range, [&](int64_t, std::span<const std::byte> piece) {
    hasher.Add(piece);
    return absl::OkStatus();
  });
}

absl::StatusOr<std::vector<ByteRange>> FrameRanges(const ByteFile& file,
                                                   std::span<const ByteRange> ranges) {
  std::vector<ByteRange> frame;
  int64_t at = 0;
  const auto add_until = [&](int64_t end) -> absl::Status {
    if (end < at || end > file.size()) {
      return absl::DataLossError(
          StrCat(file.path(), ": boxes overlap or reach beyond its end near byte ", end));
    }
    frame.push_back({at, end - at});
    return absl::OkStatus();
  };
  for (const ByteRange& range : ranges) {
    RETURN_IF_ERROR(add_until(range.offset));
    at = range.offset + range.bytes;
  }
  RETURN_IF_ERROR(add_until(file.size()));
  return frame;
}

absl::StatusOr<std::string> FrameHash(const ByteFile& file, std::span<const ByteRange> ranges) {
  ASSIGN_OR_RETURN(const std::vector<ByteRange> frame, FrameRanges(file, ranges));
  Hasher128 hasher;
  for (const ByteRange& range : frame) RETURN_IF_ERROR(HashRange(file, range, hasher));
  return hasher.Digest();
}

absl::Status CopyFrame(const ByteFile& from, std::span<const ByteRange> ranges,
                       const ByteFile& to) {
  ASSIGN_OR_RETURN(const std::vector<ByteRange> frame, FrameRanges(from, ranges));
  for (const ByteRange& range : frame) {
    RETURN_IF_ERROR(ForEachPiece(
        from, range,
        [&](int64_t offset, std::span<const std::byte> piece) { return to.Write(offset, piece); }));
  }
  return absl::OkStatus();
}

}  // namespace lt2
