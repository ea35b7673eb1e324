#include "parallel/pipeline_plan.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "core/strings.h"
#include "parallel/pipeline_simulation.h"

namespace lt2 {
namespace {

using Kind = PipelineJob::Kind;

template <class Fn>
void ForEachShape(const Fn& fn) {
  for (const Pipeline pipeline : {Pipeline::kRing, Pipeline::kRingZb}) {
    for (int P = 1; P <= 8; ++P) {
      for (int T = 1; T <= 4; ++T) {
        for (int m = P; m <= 32; ++m) {
          SCOPED_TRACE(StrCat(pipeline == Pipeline::kRing ? "ring" : "ring-zb", " P = ", P,
                              ", T = ", T, ", m = ", m));
          fn(PipelineShape{pipeline, P, T, m});
          if (testing::Test::HasFailure()) return;
        }
      }
    }
  }
}

TEST(PipelinePlan, EveryVisitRunsOnceOnEveryStage) {
  ForEachShape([](const PipelineShape& shape) {
    const PipelinePlan plan = MakePipelinePlan(shape);
    ASSERT_EQ(static_cast<int>(plan.stages.size()), shape.stages);
    for (int r = 0; r < shape.stages; ++r) {
      std::map<std::pair<int, int>, std::vector<Kind>> seen;
      int heads = 0;
      for (const PipelineJob& job : plan.stages[r]) {
        if (job.kind == Kind::kHead) ++heads;
        if (job.kind == Kind::kForward || job.kind == Kind::kBackwardInput ||
            job.kind == Kind::kBackwardWeight) {
          seen[{job.micro_batch, job.loop}].push_back(job.kind);
        }
      }
      EXPECT_EQ(heads, r == 0 ? shape.micro_batches : 0);
      EXPECT_EQ(static_cast<int>(seen.size()), shape.micro_batches * shape.loops);
      for (const auto& [visit, kinds] : seen) {
        ASSERT_EQ(kinds,
                  (std::vector<Kind>{Kind::kForward, Kind::kBackwardInput, Kind::kBackwardWeight}));
      }
    }
  });
}

TEST(PipelinePlan, ForwardsAloneVisitEveryStageOnceAndNeverDeadlock) {
  for (int P = 1; P <= 8; ++P) {
    for (int T = 1; T <= 4; ++T) {
      for (int m = 1; m <= 20; ++m) {
        SCOPED_TRACE(StrCat("P = ", P, ", T = ", T, ", m = ", m));
        const PipelinePlan plan = MakeForwardPlan(P, T, m);
        for (int r = 0; r < P; ++r) {
          std::map<std::pair<int, int>, int> forwards, heads;  // times run
          for (const PipelineJob& job : plan.stages[r]) {
            if (job.kind == Kind::kForward) ++forwards[{job.micro_batch, job.loop}];
            if (job.kind == Kind::kHead) ++heads[{job.micro_batch, job.loop}];
          }
          EXPECT_EQ(static_cast<int>(forwards.size()), m * T);
          EXPECT_EQ(static_cast<int>(heads.size()), r == 0 ? m : 0);
          for (const auto& [visit, times] : forwards) EXPECT_EQ(times, 1);
          for (const auto& [visit, times] : heads) EXPECT_EQ(times, 1);
        }
        for (const Sends sends : {Sends::kEager, Sends::kBlocking}) {
          EXPECT_FALSE(Simulate(plan, {}, sends).deadlock);
        }
      }
    }
  }
}

TEST(PipelinePlan, NeverDeadlocksWithEagerOrBlockingSends) {
  ForEachShape([](const PipelineShape& shape) {
    const PipelinePlan plan = MakePipelinePlan(shape);
    for (const Sends sends : {Sends::kEager, Sends::kBlocking}) {
      EXPECT_FALSE(Simulate(plan, {}, sends).deadlock)
          << (sends == Sends::kEager ? "eager" : "blocking");
    }
  });
}

TEST(PipelinePlan, TheBubbleIsTheFormula) {
  ForEachShape([](const PipelineShape& shape) {
    const PipelinePlan plan = MakePipelinePlan(shape);
    const double visits = shape.loops * shape.micro_batches, P = shape.stages;
    if (shape.pipeline == Pipeline::kRingZb) {
      EXPECT_DOUBLE_EQ(Simulate(plan, {}).bubble(), (P - 1) / (3 * visits));
      return;
    }
    EXPECT_DOUBLE_EQ(Simulate(plan, {}).bubble(), (P - 1) / visits);
  });
}

TEST(PipelinePlan, TheBubbleOfTheRingIsTheFormulaWhateverJobsCost) {
  std::mt19937_64 bits(11);
  const auto cost = [&] { return 0.25 * static_cast<double>(1 + bits() % 8); };
  for (int n = 0; n < 200; ++n) {
    const int P = 2 + static_cast<int>(bits() % 7), T = 1 + static_cast<int>(bits() % 4);
    const int m = P + static_cast<int>(bits() % 20);
    const PipelineCosts costs{cost(), cost(), cost()};
    SCOPED_TRACE(StrCat("P = ", P, ", T = ", T, ", m = ", m, ", F = ", costs.forward,
                        ", Bi = ", costs.backward_input, ", W = ", costs.backward_weight));
    const PipelinePlan plan = MakePipelinePlan({Pipeline::kRing, P, T, m, costs});
    EXPECT_NEAR(Simulate(plan, costs).bubble(), (P - 1.0) / (T * m), 1e-9);
    EXPECT_FALSE(Simulate(plan, costs, Sends::kBlocking).deadlock);
  }
}

TEST(PipelinePlan, OneLoopHoldsAsManyVisitsAs1F1B) {
  for (int P = 1; P <= 8; ++P) {
    const PipelineTimes times = Simulate(MakePipelinePlan({Pipeline::kRing, P, 1, 3 * P}), {});
    for (int r = 0; r < P; ++r)
      EXPECT_EQ(times.peak_visits[r], P - r) << "stage " << r << " of " << P;
  }
}

// 2 (P - 1 - r) + (T - 1) P + 1 where groups are of P; holding weights back costs stage 0 nothing.
TEST(PipelinePlan, HoldsNoMoreVisitsThanSaid) {
  for (const Pipeline pipeline : {Pipeline::kRing, Pipeline::kRingZb}) {
    for (int P = 2; P <= 8; ++P) {
      for (int T = 2; T <= 4; ++T) {
        const PipelineTimes times = Simulate(MakePipelinePlan({pipeline, P, T, 4 * P}), {});
        for (int r = 0; r < P; ++r) {
          const int held = pipeline == Pipeline::kRingZb ? r : 0;
          EXPECT_LE(times.peak_visits[r], 2 * (P - 1 - r) + (T - 1) * P + 1 + held);
        }
        EXPECT_EQ(times.peak_visits[0], 2 * (P - 1) + (T - 1) * P + 1);
      }
    }
  }
}

}  // namespace
}  // namespace lt2
