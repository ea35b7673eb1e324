#include "launch/run_dir.h"

#include "checkpoints/catalog.h"
#include "core/file.h"
#include "core/log.h"
#include "core/status_macros.h"
#include "core/strings.h"

namespace lt2 {

std::string RunPaths::config() const { return JoinPath(root, "config.toml"); }
std::string RunPaths::environment() const { return JoinPath(root, "env.json"); }
std::string RunPaths::log() const { return JoinPath(root, "log.txt"); }
std::string RunPaths::logs() const { return JoinPath(root, "logs"); }
std::string RunPaths::rank_log(int rank) const {
  return JoinPath(logs(), StrCat("rank-", rank, ".txt"));
}
std::string RunPaths::checkpoints() const { return JoinPath(root, "checkpoints"); }
std::string RunPaths::stop_trigger() const { return JoinPath(root, "stop"); }
std::string RunPaths::save_trigger() const { return JoinPath(root, "save"); }

namespace {

// Before the first step is the time to hear that nothing can be saved.
absl::Status CheckWritable(const std::string& folder) {
  const std::string probe = JoinPath(folder, ".writable");
  RETURN_IF_ERROR(FileSystem::Get().WriteFile(probe, ""));
  return FileSystem::Get().RemoveAll(probe);
}

}  // namespace

absl::StatusOr<std::unique_ptr<RunDir>> RunDir::Open(const std::string& path,
                                                     const LockOptions& options) {
  FileSystem& files = FileSystem::Get();
  const RunPaths paths{path};
  RETURN_IF_ERROR(files.MakeDirectories(paths.checkpoints()));
  RETURN_IF_ERROR(files.MakeDirectories(paths.logs()));
  ASSIGN_OR_RETURN(std::unique_ptr<RunLock> lock, RunLock::Acquire(path, options));
  RETURN_IF_ERROR(RemoveStale(paths.checkpoints()));
  RETURN_IF_ERROR(CheckWritable(paths.checkpoints()));
  for (const std::string& trigger : {paths.stop_trigger(), paths.save_trigger()}) {
    if (TakeTrigger(trigger)) LogWarn(StrCat(trigger, " is older than this start and is removed"));
  }
  ASSIGN_OR_RETURN(MetricsWriter metrics, MetricsWriter::Open(path));
  return std::unique_ptr<RunDir>(new RunDir(paths, std::move(lock), std::move(metrics)));
}

absl::Status RunDir::Describe(std::string_view config_toml, const JsonLine& environment) const {
  RETURN_IF_ERROR(WriteFileAtomically(paths_.config(), config_toml));
  return WriteFileAtomically(
      paths_.environment(),
      environment.dump(2, ' ', false, JsonLine::error_handler_t::replace) + "\n");
}

void LogToRunDir(const RunPaths& paths, int rank) {
  SetLogSink([log = paths.log(), rank_log = paths.rank_log(rank), rank](LogLevel level,
                                                                        std::string_view line) {
    const std::string text = StrCat(line, "\n");
    // A log that cannot be written must not end a run: the line went to standard error already.
    if (rank == 0) FileSystem::Get().AppendFile(log, text).IgnoreError();
    if (level >= LogLevel::kWarn) FileSystem::Get().AppendFile(rank_log, text).IgnoreError();
  });
}

bool TakeTrigger(const std::string& path) {
  FileSystem& files = FileSystem::Get();
  return files.Exists(path) && !files.IsDirectory(path) && files.RemoveAll(path).ok();
}

}  // namespace lt2
