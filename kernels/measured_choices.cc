#include "kernels/measured_choices.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <sstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "core/file.h"
#include "core/hash.h"
#include "core/log.h"
#include "core/status_macros.h"

namespace lt2 {
namespace {

// The whole file's, between processes and between threads.
class Lock {
 public:
  // Null where somebody else has it.
  static absl::StatusOr<std::unique_ptr<Lock>> Try(const std::string& path) {
    const int descriptor = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (descriptor < 0) return ErrnoStatus(errno, "cannot open the lock", path);
    auto lock = std::make_unique<Lock>(descriptor);
    while (flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
      if (errno == EWOULDBLOCK) return nullptr;
      if (errno != EINTR) return ErrnoStatus(errno, "cannot lock", path);
    }
    return lock;
  }
  explicit Lock(int descriptor) : descriptor_(descriptor) {}
  ~Lock() { close(descriptor_); }
  Lock(const Lock&) = delete;

 private:
  const int descriptor_;
};

std::string CheckOf(const std::string& key, const std::string& value) {
  return absl::StrCat(absl::Hex(Hash64(absl::StrCat(key, " ", value)), absl::kZeroPad16));
}

std::string FromEnvironment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

absl::StatusOr<std::string> CacheDirectory() {
  if (const std::string own = FromEnvironment("LT2_CACHE_DIR"); !own.empty()) return own;
  if (const std::string xdg = FromEnvironment("XDG_CACHE_HOME"); !xdg.empty()) {
    return JoinPath(xdg, "lt2");
  }
  if (const std::string home = FromEnvironment("HOME"); !home.empty()) {
    return JoinPath(home, ".cache/lt2");
  }
  return absl::NotFoundError("no folder for caches: set LT2_CACHE_DIR or HOME");
}

void MeasuredChoices::Read() {
  values_.clear();
  const absl::StatusOr<std::string> text = FileSystem::Get().ReadFile(path_);
  if (!text.ok()) {
    if (!absl::IsNotFound(text.status())) LogWarn(text.status().ToString());
    return;
  }
  std::istringstream lines(*text);
  std::string line;
  int damaged = 0;
  while (std::getline(lines, line)) {
    std::istringstream words(line);
    std::string key, value, check, more;
    words >> key >> value >> check;
    if (!words || words >> more || check != CheckOf(key, value)) {
      ++damaged;
    } else {
      values_[key] = value;
    }
  }
  if (damaged > 0) {
    LogWarn(absl::StrCat(path_, ": ", damaged, " damaged lines are ignored and measured again"));
  }
}

absl::Status MeasuredChoices::Write() const {
  std::string text;
  for (const auto& [key, value] : values_) {
    absl::StrAppend(&text, key, " ", value, " ", CheckOf(key, value), "\n");
  }
  return WriteFileAtomically(path_, text);
}

absl::StatusOr<std::string> MeasuredChoices::Choose(
    const std::string& key, const std::function<bool(const std::string&)>& sound,
    const std::function<std::string()>& measure) {
  const auto known = [&] {
    const auto found = values_.find(key);
    return found != values_.end() && sound(found->second) ? found->second : "";
  };
  if (std::string value = known(); !value.empty()) return value;
  const size_t slash = path_.rfind('/');
  if (slash != std::string::npos) {
    RETURN_IF_ERROR(FileSystem::Get().MakeDirectories(path_.substr(0, slash)));
  }
  // Whoever measures may wait for a collective of a rank that is behind. What that rank needs until
  // then is in the file already: it must find it without the lock.
  std::unique_ptr<Lock> lock;
  while (true) {
    ASSIGN_OR_RETURN(lock, Lock::Try(absl::StrCat(path_, ".lock")));
    Read();
    if (std::string value = known(); !value.empty()) return value;
    if (lock != nullptr) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  const std::string measured = measure();
  if (measured.empty()) return measured;
  values_[key] = measured;
  RETURN_IF_ERROR(Write());
  return measured;
}

}  // namespace lt2
