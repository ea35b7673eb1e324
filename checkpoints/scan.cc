#include "checkpoints/scan.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <numeric>
#include <thread>
#include <vector>

namespace lt2 {
namespace {

size_t ThreadsFor(const ScanOptions& options, size_t items) {
  const size_t wanted = options.threads > 0
                            ? static_cast<size_t>(options.threads)
                            : std::clamp(std::thread::hardware_concurrency(), 1u, 16u);
  return std::min(wanted, items);
}

}  // namespace

absl::Status ForEachItem(std::span<const int64_t> bytes, const ScanOptions& options,
                         const std::function<absl::Status(size_t)>& work) {
  const int64_t total = std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
  std::atomic<size_t> next{0};
  std::atomic<bool> failed{false};
  std::mutex mutex;  // of what follows
  int64_t done = 0;
  size_t first_failure = bytes.size();
  absl::Status failure;

  const auto run = [&] {
    while (!failed.load(std::memory_order_relaxed)) {
      const size_t i = next.fetch_add(1);
      if (i >= bytes.size()) return;
      absl::Status status = work(i);
      const std::lock_guard lock(mutex);
      if (!status.ok() && i < first_failure) {
        first_failure = i;
        failure = std::move(status);
        failed = true;
      }
      done += bytes[i];
      options.progress(done, total);
    }
  };
  std::vector<std::thread> others;
  for (size_t t = 1; t < ThreadsFor(options, bytes.size()); ++t) others.emplace_back(run);
  run();
  for (std::thread& thread : others) thread.join();
  return failure;
}

}  // namespace lt2
