// Operators whose parameter ranks divide, as threads, against one rank: values and every gradient.
#include "split_operators.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "core/strings.h"
#include "kernels/case.h"
#include "parallel/tensor_shard.h"
#include "parallel/thread_communicator.h"

namespace lt2 {
namespace {

using Values = std::vector<double>;

double Error(const Values& got, const Values& want) {
  const Shape shape{static_cast<int64_t>(want.size())};
  return RelativeError({{static_cast<int64_t>(got.size())}, got}, {shape, want});
}

double Tolerance(DType dtype) { return dtype == DType::kF64 ? 1e-12 : 2e-6; }

// run(part) as each rank, and `one` by no group at all.
struct Outcomes {
  Outcome one;
  std::vector<Outcome> of_rank;

  Values Sum(Values Outcome::*member) const {
    Values sum = of_rank[0].*member;
    for (size_t r = 1; r < of_rank.size(); ++r) {
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += (of_rank[r].*member)[i];
    }
    return sum;
  }
  Values Joined(Values Outcome::*member) const {
    Values all;
    for (const Outcome& outcome : of_rank) {
      all.insert(all.end(), (outcome.*member).begin(), (outcome.*member).end());
    }
    return all;
  }
};

template <class Run>
Outcomes RunAll(int ranks, Device device, DType dtype, const Run& run) {
  Outcomes all{.one = run(Part{.device = device, .dtype = dtype}),
               .of_rank = std::vector<Outcome>(ranks)};
  RunRanks(ranks, [&](Communicator& tp) {
    TensorShard shard(tp, /*sequence=*/false, 1);
    all.of_rank[tp.rank()] = run(Part{.device = device, .dtype = dtype, .link = &shard});
  });
  return all;
}

// check(ranks, device, dtype); one rank is to give the bits of no group.
template <class Check>
void OnEveryGroup(const Check& check) {
  for (const int ranks : {1, 2, 3}) {
    for (const DType dtype : {DType::kF64, DType::kF32}) {
      SCOPED_TRACE(StrCat(ranks, " ranks, ", Name(dtype)));
      check(ranks, Device{Backend::kCpu}, dtype);
    }
    SCOPED_TRACE(StrCat(ranks, " ranks of the reference"));
    check(ranks, Device{Backend::kReference}, DType::kF64);
  }
}

void ExpectBits(const Outcomes& all) {
  for (const auto member : {&Outcome::y, &Outcome::dx, &Outcome::dw}) {
    EXPECT_EQ(all.of_rank[0].*member, all.one.*member);
  }
}

std::vector<HeadProblem> HeadProblems() {
  std::vector<HeadProblem> problems;
  for (const int64_t V : {130, 97, 4}) {  // as many rows on all, or not
    for (const bool keep : {true, false}) {
      problems.push_back({.V = V, .keep = keep, .scale = 2});
      problems.push_back({.V = V, .keep = keep, .per_token = true, .scale = 2});
    }
    problems.push_back({.V = V, .known = true, .scale = 2});
  }
  // Chunks chosen from the vocabulary, of which ranks have different parts.
  problems.push_back({.N = 300, .D = 3, .V = 30001, .chunk_rows = 0, .known = true});
  problems.push_back({.N = 300, .D = 3, .V = 30001, .chunk_rows = 0, .keep = false});
  return problems;
}

TEST(SplitHeadLoss, IsTheHeadLoss) {
  for (const HeadProblem& problem : HeadProblems()) {
    SCOPED_TRACE(problem.ToString());
    OnEveryGroup([&](int ranks, Device device, DType dtype) {
      if (problem.V > 1000 && device.backend == Backend::kReference) return;  // takes long
      const Outcomes all = RunAll(ranks, device, dtype,
                                  [&](const Part& part) { return RunHeadLoss(problem, part); });
      if (ranks == 1) return ExpectBits(all);
      for (const Outcome& outcome : all.of_rank) EXPECT_EQ(outcome.y, all.of_rank[0].y);
      EXPECT_LE(Error(all.of_rank[0].y, all.one.y), Tolerance(dtype));
      EXPECT_LE(Error(all.Sum(&Outcome::dx), all.one.dx), Tolerance(dtype));
      EXPECT_LE(Error(all.Joined(&Outcome::dw), all.one.dw), Tolerance(dtype));
    });
  }
}

// What is not a number on one rank is not one on any; other tokens are none the worse.
TEST(SplitHeadLoss, NotANumber) {
  const auto bits = [](const Values& values) {
    std::vector<uint64_t> of;
    for (double value : values) of.push_back(std::bit_cast<uint64_t>(value));
    return of;
  };
  for (const int64_t row : {0, 64, 129}) {  // of w: of the first rank, or of the last
    const HeadProblem problem{.per_token = true, .nan_rows = {row}};
    const Outcomes all =
        RunAll(3, {}, DType::kF32, [&](const Part& part) { return RunHeadLoss(problem, part); });
    for (const Outcome& outcome : all.of_rank) {
      EXPECT_EQ(bits(outcome.y), bits(all.of_rank[0].y));
      for (int64_t i = 0; i < problem.N; ++i) EXPECT_EQ(std::isnan(outcome.y[i]), i % 7 != 1) << i;
    }
  }
  const HeadProblem problem{.per_token = true, .nan_tokens = {3}};
  HeadProblem healthy = problem;
  healthy.nan_tokens = {};
  const auto run = [](const HeadProblem& of) {
    return RunAll(2, {}, DType::kF32, [&](const Part& part) { return RunHeadLoss(of, part); });
  };
  const Outcomes bad = run(problem), good = run(healthy);
  for (int r = 0; r < 2; ++r) {
    for (int64_t i = 0; i < 2 * problem.N; ++i) {
      if (i % problem.N == 3) {
        EXPECT_TRUE(std::isnan(bad.of_rank[r].y[i]));
      } else {
        EXPECT_EQ(bad.of_rank[r].y[i], good.of_rank[r].y[i]) << i;
      }
    }
  }
}

// Logits far beyond exp's range, the largest on one rank and the target on another.
TEST(SplitHeadLoss, HugeLogits) {
  const HeadProblem problem{.known = true, .scale = 1000};
  for (const DType dtype : {DType::kF64, DType::kF32}) {
    const Outcomes all =
        RunAll(3, {}, dtype, [&](const Part& part) { return RunHeadLoss(problem, part); });
    EXPECT_LE(Error(all.of_rank[2].y, all.one.y), Tolerance(dtype));
    EXPECT_LE(Error(all.Joined(&Outcome::dw), all.one.dw), Tolerance(dtype));
  }
}

TEST(SplitHeadLossDeathTest, PartOfTheVocabularyAndNobodyWithTheRest) {
  const auto run = [] {
    RunRanks(2, [](Communicator& tp) {
      TensorShard shard(tp, false, 1);
      RunHeadLoss({.told_of_others = false}, Part{.link = &shard});
    });
  };
  EXPECT_DEATH(run(), "w is held in part, without a link");
}

TEST(SplitEmbedding, SumIsTheEmbedding) {
  for (const int64_t V : {19, 3}) {
    OnEveryGroup([&](int ranks, Device device, DType dtype) {
      const EmbeddingProblem problem{.V = V};
      const Outcomes all = RunAll(ranks, device, dtype,
                                  [&](const Part& part) { return RunEmbedding(problem, part); });
      EXPECT_EQ(all.Sum(&Outcome::y), all.one.y);
      EXPECT_EQ(all.Joined(&Outcome::dw), all.one.dw);
    });
  }
}

TEST(SplitRmsNorm, IsTheNormOfAllChannels) {
  for (const double scale : {1.0, 0.01}) {
    OnEveryGroup([&](int ranks, Device device, DType dtype) {
      const NormProblem problem{.scale = scale};
      const Outcomes all = RunAll(ranks, device, dtype,
                                  [&](const Part& part) { return RunSplitRmsNorm(problem, part); });
      if (ranks == 1) return ExpectBits(all);
      const int64_t C = problem.C / ranks;
      for (int r = 0; r < ranks; ++r) {
        const Outcome& got = all.of_rank[r];
        const auto own = [&](const Values& x) { return Columns(x, problem.C, r * C, r * C + C); };
        EXPECT_LE(Error(got.y, own(all.one.y)), Tolerance(dtype));
        EXPECT_LE(Error(got.dx, own(all.one.dx)), Tolerance(dtype));
        EXPECT_LE(Error(got.dw, own(all.one.dw)), Tolerance(dtype));
      }
    });
  }
}

// One number a row each way, whatever is computed again.
TEST(SplitRmsNorm, Traffic) {
  RunRanks(2, [](Communicator& tp) {
    TensorShard shard(tp, false, 1);
    const NormProblem problem;
    RunSplitRmsNorm(problem, Part{.link = &shard});
    EXPECT_EQ(tp.traffic().messages, 2);
    EXPECT_EQ(tp.traffic().bytes, 2 * problem.N * 8);
  });
}

}  // namespace
}  // namespace lt2
