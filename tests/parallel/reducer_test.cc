#include "parallel/reducer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

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

// Micro-batches of one use each.
template <class T>
void CheckSums(Communicator& world, int zero, int uses) {
  Toy toy(ToySpecs(), kDTypeOf<T>);
  const LayoutTable layout = Layout(ToySpecs(), {.dp = world.size()}, zero, kSmallBuckets);
  const RankGroups groups = MakeGroups(world, {.dp = world.size()});
  Reducer reducer(toy.params, layout, groups);
  for (int step = 0; step < 2; ++step) {  // the second one starts from zero again
    reducer.BeginStep(std::vector<int>(toy.params.size(), 1), uses);
    for (int use = 0; use < uses; ++use) toy.Backward(world.rank() * 100 + use, Toy::Integer);
    reducer.Finish();
    for (size_t p = 0; p < toy.params.size(); ++p) {
      const Param& param = *toy.params[p];
      for (const OwnedPiece& piece : layout.entries[p].owners) {
        if (zero > 0 && piece.rank != world.rank()) continue;
        const Tensor sum = reducer.Gradient(static_cast<int>(p), piece.box, piece.offset);
        EXPECT_EQ(sum.shape(), piece.box.extent);
        for (int64_t i = 0; i < sum.size(); ++i) {
          ASSERT_EQ(sum.data<T>()[i],
                    T(ExactSum(param.spec.name, world.size(), uses, piece.offset + i)))
              << param.spec.name << " " << i;
        }
      }
    }
  }
}

TEST(Reducer, GradientsAreTheExactSums) {
  for (int ranks = 1; ranks <= 4; ++ranks) {
    for (int zero : {0, 1, 2}) {
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

// What this rank owns, after one micro-batch of three uses of values that are not exact.
std::vector<double> OwnedSums(Communicator& world, int zero, DType dtype) {
  Toy toy(ToySpecs(), dtype);
  const LayoutTable layout = Layout(ToySpecs(), {.dp = world.size()}, zero, kSmallBuckets);
  const RankGroups groups = MakeGroups(world, {.dp = world.size()});
  Reducer reducer(toy.params, layout, groups);
  reducer.BeginStep(3);
  for (int use = 0; use < 3; ++use) toy.Backward(world.rank() * 100 + use, Toy::Uniform);
  reducer.Finish();
  std::vector<double> sums;
  for (const LayoutEntry& entry : layout.entries) {
    for (const OwnedPiece& piece : entry.owners) {
      if (piece.rank != world.rank()) continue;
      const std::vector<double> sum =
          reducer.Gradient(entry.param, piece.box, piece.offset).ToDoubles();
      sums.insert(sums.end(), sum.begin(), sum.end());
    }
  }
  return sums;
}

TEST(Reducer, OneMicroBatchHasTheSameBitsInShards) {
  for (int ranks : {1, 2, 3}) {
    RunRanks(ranks, [](Communicator& world) {
      for (DType dtype : {DType::kF32, DType::kF64}) {
        EXPECT_EQ(OwnedSums(world, 2, dtype), OwnedSums(world, 1, dtype));
      }
    });
  }
}

TEST(Reducer, ShardsAreAllThatStays) {
  RunRanks(2, [](Communicator& world) {
    Toy toy(ToySpecs(), DType::kF32);
    const LayoutTable layout = Layout(ToySpecs(), {.dp = 2}, 2, kSmallBuckets);
    const RankGroups groups = MakeGroups(world, {.dp = 2});
    Reducer reducer(toy.params, layout, groups);
    const auto there = [&] {
      int count = 0;
      for (const Bucket& bucket : layout.buckets) {
        count += toy.params[bucket.params[0]]->main_grad.defined();
      }
      return count;
    };
    int64_t elements = 0;
    for (const Bucket& bucket : layout.buckets) elements += bucket.shard_counts[world.rank()];
    EXPECT_EQ(reducer.bytes(), 4 * elements);
    ASSERT_GT(layout.buckets.size(), 2u);
    reducer.BeginStep(std::vector<int>(toy.params.size(), 2), 2);
    for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
      EXPECT_EQ(there(), 0);
      for (int p = static_cast<int>(toy.params.size()) - 1; p >= 0; --p) {
        for (int use = 0; use < 2; ++use) Toy::Use(*toy.params[p], use, Toy::Integer);
        EXPECT_LE(there(), 2);  // that of the uses, and one in a reduction
      }
      EXPECT_EQ(there(), 1);
      if (micro_batch == 0) reducer.Settle();
    }
    reducer.Finish();
    EXPECT_EQ(there(), 0);
  });
}

// As in a pipeline, and, which no schedule does, in an order of each rank's own.
TEST(Reducer, UsesOfMicroBatchesMayMix) {
  constexpr int kMicroBatches = 3;
  const std::vector<int> uses = {2, 4, 4, 4, 0, 1};
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    RunRanks(3, [&](Communicator& world) {
      Toy toy(ToySpecs(), DType::kF64);
      const LayoutTable layout = Layout(ToySpecs(), {.dp = 3}, 2, kSmallBuckets);
      const RankGroups groups = MakeGroups(world, {.dp = 3});
      Reducer reducer(toy.params, layout, groups);
      reducer.BeginStep(uses, kMicroBatches);
      std::vector<std::pair<int, int>> order;  // parameter and use
      for (size_t p = 0; p < uses.size(); ++p) {
        for (int use = 0; use < kMicroBatches * uses[p]; ++use) order.emplace_back(p, use);
      }
      std::shuffle(order.begin(), order.end(), std::mt19937_64(3 * seed + world.rank()));
      for (const auto& [p, use] : order) {
        Toy::Use(*toy.params[p], world.rank() * 100 + use, Toy::Integer);
      }
      reducer.Finish();
      for (const LayoutEntry& entry : layout.entries) {
        const std::string& name = toy.params[entry.param]->spec.name;
        for (const OwnedPiece& piece : entry.owners) {
          if (piece.rank != world.rank()) continue;
          const Tensor sum = reducer.Gradient(entry.param, piece.box, piece.offset);
          for (int64_t i = 0; i < sum.size(); ++i) {
            ASSERT_EQ(sum.data<double>()[i],
                      ExactSum(name, 3, kMicroBatches * uses[entry.param], piece.offset + i));
          }
        }
      }
    });
  }
}

TEST(Reducer, RunsDry) {
  const Device meta{Backend::kMeta};
  const RankGroups groups = MakeMetaGroups({.dp = 4}, 1);
  for (int zero : {1, 2}) {
    Toy toy(ToySpecs(), DType::kF32, meta);
    const LayoutTable layout = Layout(ToySpecs(), {.dp = 4}, zero);
    Reducer reducer(toy.params, layout, groups);
    reducer.BeginStep(1);
    for (Param* param : toy.params) {
      param->Need();
      EXPECT_TRUE(param->main_grad.defined());
      param->Arrive();
    }
    reducer.Finish();
  }
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
