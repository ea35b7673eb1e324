#include "parallel/reducer.h"

#include <gtest/gtest.h>

#include "core/trace.h"
#include "parallel/thread_communicator.h"
#include "tests/parallel/toy.h"

namespace lt2 {
namespace {

constexpr LayoutOptions kSmallBuckets{.bucket_elements = 200};

// The sum over ranks and uses, which integers make exact in every order.
double ExactSum(const std::string& name, int ranks, int uses, int64_t i) {
  double sum = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    for (int use = 0; use < uses; ++use) sum += Toy::Integer(name, rank * 100 + use, i);
  }
  return sum;
}

template <class T>
void CheckSums(Communicator& world, int zero, int uses) {
  Toy toy(ToySpecs(), kDTypeOf<T>);
  const LayoutTable layout = Layout(ToySpecs(), {.dp = world.size()}, zero, kSmallBuckets);
  const RankGroups groups = MakeGroups(world, {.dp = world.size()});
  Reducer reducer(toy.params, layout, groups);
  for (int step = 0; step < 2; ++step) {  // the second one starts from zero again
    reducer.BeginStep(uses);
    for (int use = 0; use < uses; ++use) toy.Backward(world.rank() * 100 + use, Toy::Integer);
    reducer.Finish();
    for (size_t p = 0; p < toy.params.size(); ++p) {
      const Param& param = *toy.params[p];
      for (const OwnedPiece& piece : layout.entries[p].owners) {
        if (zero == 1 && piece.rank != world.rank()) continue;
        for (int64_t i = piece.offset; i < piece.offset + piece.box.size(); ++i) {
          ASSERT_EQ(param.main_grad.data<T>()[i],
                    T(ExactSum(param.spec.name, world.size(), uses, i)))
              << param.spec.name << " " << i;
        }
      }
    }
  }
}

TEST(Reducer, GradientsAreTheExactSums) {
  for (int ranks = 1; ranks <= 4; ++ranks) {
    for (int zero : {0, 1}) {
      for (int uses : {1, 3}) {
        SCOPED_TRACE(testing::Message() << ranks << " ranks, zero " << zero << ", " << uses);
        RunRanks(ranks, [&](Communicator& world) {
          CheckSums<float>(world, zero, uses);
          CheckSums<double>(world, zero, uses);
        });
      }
    }
  }
}

TEST(Reducer, BucketsAreFiredByTheLastUseInOrder) {
  EnableTrace(true);
  std::vector<double> backward_end(2);
  RunRanks(2, [&](Communicator& world) {
    Toy toy(ToySpecs(), DType::kF32);
    const LayoutTable layout = Layout(ToySpecs(), {.dp = 2}, 1, kSmallBuckets);
    const RankGroups groups = MakeGroups(world, {.dp = 2});
    Reducer reducer(toy.params, layout, groups);
    reducer.BeginStep(2);
    toy.Backward(0, Toy::Integer);
    world.Barrier("first_use_over");
    const auto reductions = [&] {
      int count = 0;
      for (const FlightRecord& record : world.recorder().Records()) {
        count += std::string(record.label) == "reduce_gradients";
      }
      return count;
    };
    EXPECT_EQ(reductions(), 0);
    // Within the second backward each bucket goes as soon as it is complete.
    for (int p = static_cast<int>(toy.params.size()) - 1; p >= 0; --p) {
      Toy::Use(*toy.params[p], 1, Toy::Integer);
      const int bucket = layout.entries[p].bucket;
      EXPECT_EQ(reductions(), layout.buckets[bucket].params.back() == p ? bucket + 1 : bucket);
    }
    backward_end[world.rank()] = MonotonicSeconds();
    reducer.Finish();
    EXPECT_EQ(reductions(), static_cast<int>(layout.buckets.size()));
  });
  int early = 0;
  for (const TraceEvent& event : TraceEvents()) {
    early += std::string(event.name) == "reduce_gradients" &&
             event.end < std::max(backward_end[0], backward_end[1]);
  }
  EnableTrace(false);
  EXPECT_GT(early, 0);
}

TEST(Reducer, ParametersUsedDifferentlyOften) {
  RunRanks(2, [](Communicator& world) {
    Toy toy(ToySpecs(), DType::kF64);
    const LayoutTable layout = Layout(ToySpecs(), {.dp = 2}, 0, kSmallBuckets);
    const RankGroups groups = MakeGroups(world, {.dp = 2});
    Reducer reducer(toy.params, layout, groups);
    std::vector<int> uses = {1, 4, 4, 4, 0, 1};  // the scalar is not used at all
    reducer.BeginStep(uses);
    for (int p = static_cast<int>(uses.size()) - 1; p >= 0; --p) {
      for (int use = 0; use < uses[p]; ++use) {
        Toy::Use(*toy.params[p], world.rank() * 100 + use, Toy::Integer);
      }
    }
    reducer.Finish();
    for (size_t p = 0; p < uses.size(); ++p) {
      const Param& param = *toy.params[p];
      for (int64_t i = 0; i < param.value.size(); ++i) {
        ASSERT_EQ(param.main_grad.data<double>()[i], ExactSum(param.spec.name, 2, uses[p], i));
      }
    }
  });
}

TEST(Reducer, RunsDry) {
  const Device meta{Backend::kMeta};
  const RankGroups groups = MakeMetaGroups({.dp = 4}, 1);
  Toy toy(ToySpecs(), DType::kF32, meta);
  const LayoutTable layout = Layout(ToySpecs(), {.dp = 4}, 1);
  Reducer reducer(toy.params, layout, groups);
  reducer.BeginStep(1);
  for (Param* param : toy.params) param->Arrive();
  reducer.Finish();
}

class ReducerDeathTest : public testing::Test {
 protected:
  std::unique_ptr<Communicator> one_ = MakeGroupOfOne();
  RankGroups groups_ = MakeGroups(*one_, {});
  Toy toy_{ToySpecs(), DType::kF32};
  LayoutTable layout_ = Layout(ToySpecs(), {}, 1);
  Reducer reducer_{toy_.params, layout_, groups_};
};

TEST_F(ReducerDeathTest, AParameterThatNeverArrivedIsNamed) {
  reducer_.BeginStep(2);
  toy_.Backward(0, Toy::Integer);
  for (size_t p = 1; p < toy_.params.size(); ++p) Toy::Use(*toy_.params[p], 1, Toy::Integer);
  EXPECT_DEATH(reducer_.Finish(), "never arrived: embed.weight \\(1 more uses expected\\)");
}

TEST_F(ReducerDeathTest, OneUseTooManyIsNamed) {
  reducer_.BeginStep(1);
  toy_.Backward(0, Toy::Integer);
  EXPECT_DEATH(Toy::Use(*toy_.params[2], 1, Toy::Integer), "ffn.weight was used more often");
}

TEST_F(ReducerDeathTest, StepsMustBeginAndEnd) {
  EXPECT_DEATH(reducer_.Finish(), "without BeginStep");
  reducer_.BeginStep(1);
  EXPECT_DEATH(reducer_.BeginStep(1), "before the Finish");
}

}  // namespace
}  // namespace lt2
