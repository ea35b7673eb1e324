#include "core/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_format.h"
#include "core/hash.h"
#include "core/status_macros.h"
#include "core/strings.h"

namespace lt2 {
namespace {

// A file descriptor that closes itself; Close reports what a delayed write ran into.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }
  bool ok() const { return fd_ >= 0; }
  int Close() { return ::close(std::exchange(fd_, -1)); }

 private:
  int fd_;
};

int OpenRetrying(const std::string& path, int flags) {
  int fd;
  do {
    fd = ::open(path.c_str(), flags | O_CLOEXEC, 0666);
  } while (fd < 0 && errno == EINTR);
  return fd;
}

absl::Status WriteAll(int fd, std::string_view content, const std::string& path) {
  while (!content.empty()) {
    const ssize_t n = ::write(fd, content.data(), content.size());
    if (n < 0) {
      if (errno == EINTR) continue;
      return ErrnoStatus(errno, "cannot write", path);
    }
    content.remove_prefix(static_cast<size_t>(n));
  }
  return absl::OkStatus();
}

class PosixFileSystem : public FileSystem {
 public:
  absl::StatusOr<std::string> ReadFile(const std::string& path, int64_t most) override {
    Descriptor file(OpenRetrying(path, O_RDONLY));
    if (!file.ok()) return ErrnoStatus(errno, "cannot open", path);
    struct stat info;
    if (::fstat(file.get(), &info) != 0) return ErrnoStatus(errno, "cannot inspect", path);
    const auto too_large = [&] {
      return absl::InvalidArgumentError(
          StrCat(path, ": has more than ", most, " bytes, and such a file may not"));
    };
    if (info.st_size > most) return too_large();
    // Read to the end, not to the size: what /proc and pipes call their size is 0.
    std::string content;
    content.resize(info.st_size > 0 ? static_cast<size_t>(info.st_size) + 1 : size_t{4096});
    size_t filled = 0;
    while (true) {
      const ssize_t n = ::read(file.get(), content.data() + filled, content.size() - filled);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return ErrnoStatus(errno, "cannot read", path);
      if (n == 0) break;
      filled += static_cast<size_t>(n);
      if (static_cast<int64_t>(filled) > most) return too_large();
      if (filled == content.size()) content.resize(2 * content.size());
    }
    content.resize(filled);
    return content;
  }

  absl::Status WriteFile(const std::string& path, std::string_view content) override {
    Descriptor file(OpenRetrying(path, O_WRONLY | O_CREAT | O_TRUNC));
    if (!file.ok()) return ErrnoStatus(errno, "cannot create", path);
    RETURN_IF_ERROR(WriteAll(file.get(), content, path));
    if (::fsync(file.get()) != 0) return ErrnoStatus(errno, "cannot sync", path);
    if (file.Close() != 0) return ErrnoStatus(errno, "cannot close", path);
    return absl::OkStatus();
  }

  absl::Status AppendFile(const std::string& path, std::string_view content) override {
    Descriptor file(OpenRetrying(path, O_WRONLY | O_CREAT | O_APPEND));
    if (!file.ok()) return ErrnoStatus(errno, "cannot open for appending", path);
    RETURN_IF_ERROR(WriteAll(file.get(), content, path));
    if (file.Close() != 0) return ErrnoStatus(errno, "cannot close", path);
    return absl::OkStatus();
  }

  absl::Status Rename(const std::string& from, const std::string& to) override {
    if (std::rename(from.c_str(), to.c_str()) != 0) {
      return ErrnoStatus(errno, StrCat("cannot rename to ", to), from);
    }
    return absl::OkStatus();
  }

  absl::Status Sync(const std::string& path) override {
    Descriptor file(OpenRetrying(path, O_RDONLY));
    if (!file.ok()) return ErrnoStatus(errno, "cannot open for syncing", path);
    if (::fsync(file.get()) != 0) return ErrnoStatus(errno, "cannot sync", path);
    return absl::OkStatus();
  }

  absl::Status MakeDirectories(const std::string& path) override {
    std::error_code error;
    std::filesystem::create_directories(path, error);
    if (error) return ErrnoStatus(error.value(), "cannot create the folder", path);
    // An existing file is not reported by every library version.
    if (!IsDirectory(path)) return ErrnoStatus(ENOTDIR, "cannot create the folder", path);
    return absl::OkStatus();
  }

  absl::Status RemoveAll(const std::string& path) override {
    std::error_code error;
    std::filesystem::remove_all(path, error);
    if (error) return ErrnoStatus(error.value(), "cannot remove", path);
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<std::string>> List(const std::string& directory) override {
    DIR* dir = ::opendir(directory.c_str());
    if (dir == nullptr) return ErrnoStatus(errno, "cannot list", directory);
    std::vector<std::string> names;
    errno = 0;
    while (const dirent* entry = ::readdir(dir)) {
      const std::string_view name = entry->d_name;
      if (name != "." && name != "..") names.emplace_back(name);
      errno = 0;
    }
    const int error = errno;
    ::closedir(dir);
    if (error != 0) return ErrnoStatus(error, "cannot list", directory);
    std::sort(names.begin(), names.end());
    return names;
  }

  bool Exists(const std::string& path) override {
    struct stat info;
    return ::stat(path.c_str(), &info) == 0;
  }

  bool IsDirectory(const std::string& path) override {
    struct stat info;
    return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
  }

  absl::StatusOr<int64_t> FileSize(const std::string& path) override {
    struct stat info;
    if (::stat(path.c_str(), &info) != 0) return ErrnoStatus(errno, "cannot inspect", path);
    return static_cast<int64_t>(info.st_size);
  }
};

std::atomic<FileSystem*> replacement{nullptr};

std::string ParentDirectory(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace

FileSystem& FileSystem::Get() {
  static auto* machine = new PosixFileSystem;  // never destroyed: threads may outlive main
  FileSystem* other = replacement.load();
  return other != nullptr ? *other : *machine;
}

void FileSystem::Replace(FileSystem* other) { replacement.store(other); }

absl::Status WriteFileAtomically(const std::string& path, std::string_view content) {
  FileSystem& files = FileSystem::Get();
  const std::string temporary = StrCat(path, ".tmp");
  absl::Status status = files.WriteFile(temporary, content);
  if (status.ok()) status = files.Rename(temporary, path);
  if (!status.ok()) {
    files.RemoveAll(temporary).IgnoreError();  // the first failure is the one to tell
    return status;
  }
  return files.Sync(ParentDirectory(path));
}

std::string JoinPath(std::string_view directory, std::string_view name) {
  if (directory.empty() || name.starts_with('/')) return std::string(name);
  return StrCat(directory, directory.ends_with('/') ? "" : "/", name);
}

std::string TemporaryName(std::string_view path) {
  static std::atomic<int64_t> calls = 0;
  std::array<char, 256> host = {};
  gethostname(host.data(), host.size() - 1);
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const std::string caller =
      StrCat(host.data(), "/", getpid(), "/", std::chrono::nanoseconds(now).count(), "/", ++calls);
  return absl::StrFormat("%s.tmp-%016x", path, Hash64(caller));
}

absl::Status ErrnoStatus(int error, std::string_view what, std::string_view path) {
  const std::string message =
      StrCat(path, ": ", what, ": ", std::generic_category().message(error));
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return absl::NotFoundError(message);
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return absl::ResourceExhaustedError(message);
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::PermissionDeniedError(message);
    case EISDIR:
    case ENAMETOOLONG:
      return absl::InvalidArgumentError(message);
    default:
      return absl::InternalError(message);
  }
}

}  // namespace lt2
