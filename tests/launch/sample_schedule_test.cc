#include "launch/sample_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace lt2 {
namespace {

// Every mesh and micro-batch reads each sample of each step once, and no other.
TEST(SampleSchedule, EveryMeshReadsTheSameSamplesOnce) {
  constexpr int64_t kPerStep = 16, kFirst = 48, kSteps = 3;
  for (int64_t dp : {1, 2, 4}) {
    for (int64_t micro_batch : {1, 2, 4}) {
      const int64_t micro_batches = kPerStep / (dp * micro_batch);
      for (int64_t step = 0; step < kSteps; ++step) {
        std::vector<int64_t> samples;
        for (int64_t rank = 0; rank < dp; ++rank) {
          const SampleSchedule schedule{.first_sample = kFirst,
                                        .samples_per_step = kPerStep,
                                        .micro_batches = micro_batches,
                                        .micro_batch = micro_batch,
                                        .dp = dp,
                                        .rank = rank};
          for (int64_t m = 0; m < micro_batches; ++m) {
            schedule(step * micro_batches + m, &samples);
          }
        }
        std::sort(samples.begin(), samples.end());
        ASSERT_EQ(static_cast<int64_t>(samples.size()), kPerStep);
        for (int64_t i = 0; i < kPerStep; ++i) EXPECT_EQ(samples[i], kFirst + step * kPerStep + i);
      }
    }
  }
}

}  // namespace
}  // namespace lt2
