#include "launch/memory_advice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "launch/run_config.h"

namespace lt2 {
namespace {

using testing::HasSubstr;

StepOptions Tiny() {
  const absl::StatusOr<RunConfig> config = LoadRunConfig("lt2-tiny", {});
  CHECK(config.ok()) << config.status();
  StepOptions options{.model = config->model, .device = {Backend::kMeta}};
  options.sequence = 256;
  options.micro_batch = 8;
  options.max_documents = 8;
  return options;
}

TEST(MemoryAdvice, NamesWhatIsHeldAndTheNearestSettingThatFits) {
  const StepOptions options = Tiny();
  const int64_t now = PlanMemory(options, {.dp = 1}, 0).peak_bytes;
  const std::string roomy = MemoryAdvice(options, {.dp = 1}, 0, 2 * now);
  for (const char* kind : {"weights", "gradients", "moments", "activations", "GiB"}) {
    EXPECT_THAT(roomy, HasSubstr(kind));
  }
  // What is set now was planned to fit: something leaner is named all the same.
  EXPECT_THAT(roomy, HasSubstr("batch.micro_batch = 8 with parallel.recompute = "));
  EXPECT_THAT(roomy, testing::Not(HasSubstr("\"none\"")));

  int64_t least = now;
  for (const PolicyPlan& plan : PlanPolicies(options, {.dp = 1})) {
    least = std::min(least, plan.memory.peak_bytes);
  }
  ASSERT_LT(least, now - now / 16);
  EXPECT_THAT(MemoryAdvice(options, {.dp = 1}, 0, least), HasSubstr("batch.micro_batch = 8 with"));
  EXPECT_THAT(MemoryAdvice(options, {.dp = 1}, 0, least - 1),
              HasSubstr("batch.micro_batch = 4 with"));
}

TEST(MemoryAdvice, SaysWhereNothingFits) {
  EXPECT_THAT(MemoryAdvice(Tiny(), {.dp = 1}, 0, 1000), HasSubstr("lower data.sequence"));
}

}  // namespace
}  // namespace lt2
