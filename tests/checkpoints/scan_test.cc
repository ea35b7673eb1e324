#include "checkpoints/scan.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <vector>

namespace lt2 {
namespace {

TEST(Scan, EveryItemOnceAndProgressToTheEnd) {
  for (int threads : {0, 1, 3, 50}) {
    const std::vector<int64_t> bytes = {5, 0, 7, 1, 9, 2, 4};
    std::vector<std::atomic<int>> calls(bytes.size());
    int64_t last = 0;
    const ScanOptions options{.threads = threads, .progress = [&](int64_t done, int64_t total) {
                                EXPECT_EQ(total, 28);
                                EXPECT_GE(done, last);
                                last = done;
                              }};
    EXPECT_TRUE(ForEachItem(bytes, options, [&](size_t i) {
                  ++calls[i];
                  return absl::OkStatus();
                }).ok());
    EXPECT_EQ(last, 28);
    for (const auto& count : calls) EXPECT_EQ(count, 1);
  }
}

TEST(Scan, TheFirstFailureIsToldWhateverTheThreads) {
  const std::vector<int64_t> bytes(200, 1);
  for (int threads : {1, 2, 8}) {
    std::atomic<int> begun = 0;
    const absl::Status status = ForEachItem(bytes, {.threads = threads}, [&](size_t i) {
      ++begun;
      return i % 50 == 20 ? absl::DataLossError(std::to_string(i)) : absl::OkStatus();
    });
    EXPECT_EQ(status.message(), "20");
    EXPECT_LT(begun, 200);
  }
}

}  // namespace
}  // namespace lt2
