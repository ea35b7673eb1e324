// Work over many items of a checkpoint at once, with progress.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "absl/status/status.h"

namespace lt2 {

struct ScanOptions {
  int threads = 0;  // 0: one a core, at most 16
  // Called now and then, by one thread at a time, with the bytes done and their sum.
  std::function<void(int64_t done, int64_t total)> progress = [](int64_t, int64_t) {};
};

// Runs work(i) once for every item, in order of their beginning; bytes[i] tells how much of the
// whole it is. After a failure no further item begins. OK, or the failure of the first item that
// has one, whatever the number of threads.
absl::Status ForEachItem(std::span<const int64_t> bytes, const ScanOptions& options,
                         const std::function<absl::Status(size_t)>& work);

}  // namespace lt2
