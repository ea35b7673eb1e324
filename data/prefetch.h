// Reads the batches of the coming jobs on a thread of its own, a few ahead.
//
// A job is one micro-batch of one step, in the order in which they will be asked for. Buffers go
// round by swapping: after the first few batches nothing is allocated.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "data/loader.h"

namespace lt2 {

class Prefetcher {
 public:
  using ReadJob = std::function<absl::Status(int64_t job, Batch* batch)>;
  // Fills the (empty) list with the sample numbers of a job.
  using Schedule = std::function<void(int64_t job, std::vector<int64_t>* sample_numbers)>;

  // Jobs first … end - 1; at most `depth` batches wait to be taken. `read` runs on the thread.
  Prefetcher(ReadJob read, int64_t first, int64_t end, int depth = 4);
  Prefetcher(const Loader* loader, Schedule schedule, int64_t first, int64_t end, int depth = 4);
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;
  // Waits for at most the read in progress.
  ~Prefetcher();

  // Swaps the next job's batch into *batch. A failed read surfaces in its turn, after the batches
  // before it, and then stays; OutOfRange after the last job.
  absl::Status Next(Batch* batch);

  // Seconds that Next has waited in all.
  double wait_seconds() const { return wait_seconds_; }

 private:
  struct Slot {
    Batch batch;
    absl::Status status;
  };
  void Run(int64_t first, int64_t end);

  ReadJob read_;
  std::vector<Slot> slots_;  // a ring: job j lies in slot j mod depth
  double wait_seconds_ = 0;  // of the caller's thread

  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t ready_ = 0, taken_ = 0;  // jobs read and handed out; guarded by mutex_
  bool stop_ = false;              // guarded by mutex_
  int64_t end_ = 0;
  std::thread thread_;
};

}  // namespace lt2
