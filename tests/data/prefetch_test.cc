#include "data/prefetch.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <set>
#include <thread>

#include "tests/data/temporary_folder.h"

namespace lt2 {
namespace {

absl::Status Number(int64_t job, Batch* batch) {
  batch->ids.assign(4, static_cast<int32_t>(job));
  batch->rows = job;
  return absl::OkStatus();
}

TEST(Prefetcher, KeepsTheOrderAndEnds) {
  for (const int depth : {1, 2, 7}) {
    Prefetcher prefetcher(Number, 5, 105, depth);
    Batch batch;
    for (int64_t job = 5; job < 105; ++job) {
      ASSERT_TRUE(prefetcher.Next(&batch).ok());
      ASSERT_EQ(batch.rows, job);
      ASSERT_EQ(batch.ids[3], job);
    }
    EXPECT_TRUE(absl::IsOutOfRange(prefetcher.Next(&batch)));
    EXPECT_TRUE(absl::IsOutOfRange(prefetcher.Next(&batch)));
  }
}

TEST(Prefetcher, ReadsAtMostDepthAhead) {
  std::atomic<int64_t> started{0};
  Prefetcher prefetcher(
      [&](int64_t job, Batch* batch) {
        started = job + 1;
        return Number(job, batch);
      },
      0, 1000, 3);
  Batch batch;
  for (int64_t job = 0; job < 20; ++job) {
    ASSERT_TRUE(prefetcher.Next(&batch).ok());
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    EXPECT_LE(started.load(), job + 1 + 3);
    EXPECT_GE(started.load(), job + 1);
  }
}

TEST(Prefetcher, AnErrorComesInItsTurnAndStays) {
  Prefetcher prefetcher(
      [](int64_t job, Batch* batch) {
        return job == 3 ? absl::DataLossError("job 3") : Number(job, batch);
      },
      0, 10, 8);
  Batch batch;
  for (int64_t job = 0; job < 3; ++job) {
    ASSERT_TRUE(prefetcher.Next(&batch).ok());
    EXPECT_EQ(batch.rows, job);
  }
  for (int again = 0; again < 3; ++again) {
    EXPECT_EQ(prefetcher.Next(&batch), absl::DataLossError("job 3"));
  }
}

TEST(Prefetcher, BuffersGoRound) {
  Prefetcher prefetcher(Number, 0, 200, 3);
  Batch batch;
  std::set<const int32_t*> addresses;
  for (int64_t job = 0; job < 200; ++job) {
    ASSERT_TRUE(prefetcher.Next(&batch).ok());
    addresses.insert(batch.ids.data());
  }
  EXPECT_LE(addresses.size(), 4u) << "three slots and the caller's";
}

TEST(Prefetcher, CountsWaiting) {
  Prefetcher prefetcher(
      [](int64_t job, Batch* batch) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        return Number(job, batch);
      },
      0, 3, 2);
  Batch batch;
  for (int64_t job = 0; job < 3; ++job) ASSERT_TRUE(prefetcher.Next(&batch).ok());
  EXPECT_GT(prefetcher.wait_seconds(), 0.04);
}

TEST(Prefetcher, EndsAtAnyMoment) {
  for (int taken = 0; taken < 6; ++taken) {
    Prefetcher prefetcher(Number, 0, taken % 2 == 0 ? 1'000'000 : taken, 2);
    Batch batch;
    for (int job = 0; job < taken; ++job) ASSERT_TRUE(prefetcher.Next(&batch).ok());
  }
  Prefetcher nothing(Number, 0, 0, 2);
  Batch batch;
  EXPECT_TRUE(absl::IsOutOfRange(nothing.Next(&batch)));
}

TEST(Prefetcher, ReadsALoadersSchedule) {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 400; ++i) text += "line " + std::to_string(i) + "\n\n";
  DataConfig config;
  config.train = {{.path = folder.Write("t.txt", text)}};
  config.sequence = 16;
  const std::unique_ptr<Loader> loader = *Loader::Open(config, 1, 0);
  // Two rows a job, as rank 1 of 2 would read them.
  const auto schedule = [](int64_t job, std::vector<int64_t>* samples) {
    samples->push_back(4 * job + 2);
    samples->push_back(4 * job + 3);
  };
  Prefetcher prefetcher(loader.get(), schedule, 10, 40, 3);
  Batch batch, expected;
  for (int64_t job = 10; job < 40; ++job) {
    ASSERT_TRUE(prefetcher.Next(&batch).ok());
    ASSERT_TRUE(loader->Read(std::vector<int64_t>{4 * job + 2, 4 * job + 3}, &expected).ok());
    EXPECT_EQ(batch.ids, expected.ids);
    EXPECT_EQ(batch.targets, expected.targets);
    EXPECT_EQ(batch.cu_seqlens, expected.cu_seqlens);
    EXPECT_EQ(batch.counted, expected.counted);
  }
}

}  // namespace
}  // namespace lt2
