// The run directory: where each of its files is, and who may write.
//
// Rank 0 opens it (which takes the lock and clears what dead runs left half saved); the other ranks
// only know the path. logs/rank-N.txt are written by every rank itself.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "launch/metrics.h"
#include "launch/run_lock.h"

namespace lt2 {

// Paths inside a run directory; nothing is touched.
struct RunPaths {
  std::string root;
  std::string config() const;       // config.toml
  std::string environment() const;  // env.json
  std::string log() const;          // log.txt
  std::string logs() const;
  std::string rank_log(int rank) const;
  std::string checkpoints() const;
  std::string stop_trigger() const;  // `stop`: save, exit 75
  std::string save_trigger() const;  // `save`: save, go on
};

class RunDir {
 public:
  // Creates the directory where it is missing, waits for the lock, removes temporary checkpoints of
  // dead runs and old trigger files. FailedPrecondition if another process holds the lock.
  static absl::StatusOr<std::unique_ptr<RunDir>> Open(const std::string& path,
                                                      const LockOptions& options = {});

  // Writes config.toml (the resolved configuration) and env.json. Only once it is settled that the
  // run goes on with them.
  absl::Status Describe(std::string_view config_toml, const JsonLine& environment) const;

  const RunPaths& paths() const { return paths_; }
  MetricsWriter& metrics() { return metrics_; }
  const RunLock& lock() const { return *lock_; }

 private:
  RunDir(RunPaths paths, std::unique_ptr<RunLock> lock, MetricsWriter metrics)
      : paths_(std::move(paths)), lock_(std::move(lock)), metrics_(std::move(metrics)) {}

  RunPaths paths_;
  std::unique_ptr<RunLock> lock_;
  MetricsWriter metrics_;
};

// Sends what the calling thread's rank logs to the run directory as well: rank 0's lines to
// log.txt, and every rank's warnings and worse to logs/rank-N.txt. The directory must exist.
void LogToRunDir(const RunPaths& paths, int rank);

// True if the trigger file was there; it is removed.
bool TakeTrigger(const std::string& path);

}  // namespace lt2
