#include "launch/lock_file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>

#include "core/file.h"
#include "core/status_macros.h"
#include "core/strings.h"

namespace lt2 {
namespace {

constexpr std::string_view kPrefix = "epoch-", kSuffix = ".json";

// Of a lock file, or of what a contender writes beside it ("epoch-7.json.node3.4711"); else 0.
int64_t EpochOfName(std::string_view name) {
  if (!name.starts_with(kPrefix)) return 0;
  int64_t epoch = 0;
  std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), epoch);
  return epoch;
}

// State and start time of a process, fields 3 and 22 of /proc/PID/stat; what comes before them may
// hold spaces, so counting begins after the last parenthesis.
struct ProcessStat {
  char state = '?';
  int64_t started = 0;
};
std::optional<ProcessStat> StatOf(int64_t pid) {
  const auto text = FileSystem::Get().ReadFile(StrCat("/proc/", pid, "/stat"));
  if (!text.ok()) return std::nullopt;
  std::istringstream fields(text->substr(std::min(text->rfind(')') + 1, text->size())));
  ProcessStat stat;
  std::string skipped;
  fields >> stat.state;
  for (int field = 4; field < 22; ++field) fields >> skipped;
  fields >> stat.started;
  if (!fields) return std::nullopt;
  return stat;
}

std::string MachineId() {
  std::string boot = FileSystem::Get().ReadFile("/proc/sys/kernel/random/boot_id").value_or("");
  while (boot.ends_with('\n')) boot.pop_back();
  std::array<char, 64> name{};
  const ssize_t length = readlink("/proc/self/ns/pid", name.data(), name.size());
  return StrCat(boot, " ", std::string(name.data(), std::max<ssize_t>(length, 0)));
}

std::string HostName() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

std::string ToJson(const LockHolder& holder) {
  const nlohmann::ordered_json json = {{"host", holder.host},         {"pid", holder.pid},
                                       {"job", holder.job},           {"epoch", holder.epoch},
                                       {"released", holder.released}, {"machine", holder.machine},
                                       {"started", holder.started}};
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

// For file systems without hard links; a reader may meet the file before its content.
absl::Status CreateWithoutLinks(const std::string& path, const LockHolder& holder) {
  const int descriptor = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor < 0 && errno == EEXIST) return absl::AlreadyExistsError(path);
  if (descriptor < 0) return ErrnoStatus(errno, "cannot create the lock", path);
  close(descriptor);
  return FileSystem::Get().WriteFile(path, ToJson(holder));
}

}  // namespace

LockHolder LockHolder::ThisProcess(int64_t epoch) {
  const char* job = std::getenv("SLURM_JOB_ID");
  const std::optional<ProcessStat> stat = StatOf(getpid());
  return {.host = HostName(),
          .machine = MachineId(),
          .pid = getpid(),
          .started = stat ? stat->started : 0,
          .job = job != nullptr ? job : "",
          .epoch = epoch};
}

std::string LockHolder::ToString() const {
  if (pid == 0) return "a process that its lock file does not name";
  return StrCat("pid ", pid, " on ", host, job.empty() ? "" : StrCat(" (job ", job, ")"));
}

bool LockHolder::KnownDead() const {
  if (machine != MachineId()) return false;
  const std::optional<ProcessStat> stat = StatOf(pid);
  // Z and X: killed, but not yet collected by its parent.
  return !stat || stat->started != started || stat->state == 'Z' || stat->state == 'X';
}

std::string LockFilePath(const std::string& folder, int64_t epoch) {
  return JoinPath(folder, StrCat(kPrefix, epoch, kSuffix));
}

absl::StatusOr<int64_t> HighestEpoch(const std::string& folder) {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, FileSystem::Get().List(folder));
  int64_t highest = 0;
  for (const std::string& name : names) {
    const int64_t epoch = EpochOfName(name);
    if (LockFilePath(folder, epoch) == JoinPath(folder, name)) highest = std::max(highest, epoch);
  }
  return highest;
}

void RemoveEpochsBefore(const std::string& folder, int64_t epoch) {
  const auto names = FileSystem::Get().List(folder);
  if (!names.ok()) return;
  for (const std::string& name : *names) {
    if (EpochOfName(name) >= epoch) continue;
    FileSystem::Get().RemoveAll(JoinPath(folder, name)).IgnoreError();
  }
}

absl::StatusOr<LockHolder> ReadLockFile(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, FileSystem::Get().ReadFile(path));
  try {
    const nlohmann::json json = nlohmann::json::parse(text);
    return LockHolder{.host = json.at("host"),
                      .machine = json.at("machine"),
                      .pid = json.at("pid"),
                      .started = json.at("started"),
                      .job = json.at("job"),
                      .epoch = json.at("epoch"),
                      .released = json.at("released")};
  } catch (const std::exception& error) {
    return absl::DataLossError(StrCat(path, ": not a lock file: ", error.what()));
  }
}

absl::Status CreateLockFile(const std::string& path, const LockHolder& holder) {
  // A link to a finished file: nobody ever sees the name without its content.
  const std::string mine = StrCat(path, ".", holder.host, ".", holder.pid);
  RETURN_IF_ERROR(FileSystem::Get().WriteFile(mine, ToJson(holder)));
  const int error = link(mine.c_str(), path.c_str()) == 0 ? 0 : errno;
  // A server may have made the link and lost the answer; the number of links tells.
  struct stat status;
  const bool linked = stat(mine.c_str(), &status) == 0 && status.st_nlink == 2;
  unlink(mine.c_str());
  if (linked) return absl::OkStatus();
  if (error == EPERM || error == EOPNOTSUPP || error == ENOSYS) {
    return CreateWithoutLinks(path, holder);
  }
  // ENOENT: a later holder has swept the folder.
  if (error == EEXIST || error == ENOENT) return absl::AlreadyExistsError(path);
  return ErrnoStatus(error == 0 ? EIO : error, "cannot create the lock", path);
}

absl::Status MarkReleased(const std::string& path) {
  ASSIGN_OR_RETURN(LockHolder holder, ReadLockFile(path));
  holder.released = true;
  return WriteFileAtomically(path, ToJson(holder));
}

std::optional<int64_t> HeartbeatOf(const std::string& path) {
  // Opening makes network file systems ask their server instead of their cache.
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return std::nullopt;
  struct stat status;
  const bool ok = fstat(descriptor, &status) == 0;
  close(descriptor);
  if (!ok) return std::nullopt;
  return status.st_mtim.tv_sec * int64_t{1'000'000'000} + status.st_mtim.tv_nsec;
}

bool TouchLockFile(const std::string& path) {
  return utimensat(AT_FDCWD, path.c_str(), nullptr, 0) == 0;
}

}  // namespace lt2
