// A model trained on a GPU on random packings, as it comes or recorded, and what is compared of it.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "core/philox.h"
#include "launch/train_step.h"

namespace lt2 {

// Random tokens in a random number of documents, of which every window begins one.
inline Batch RandomBatch(const StepOptions& options, uint64_t number) {
  constexpr uint64_t kSeed = 5;
  Batch batch;
  batch.rows = options.micro_batch;
  const int64_t tokens = options.micro_batch * options.sequence;
  std::set<int32_t> cuts = {static_cast<int32_t>(tokens)};
  for (int64_t row = 0; row < batch.rows; ++row) {
    cuts.insert(static_cast<int32_t>(row * options.sequence));
  }
  const uint64_t more = Philox(kSeed, number, 1)[0] % (options.max_documents - batch.rows + 1);
  for (uint64_t i = 0; i < more; ++i) {
    cuts.insert(static_cast<int32_t>(Philox(kSeed, number, 2 + i)[1] % tokens));
  }
  batch.cu_seqlens.assign(cuts.begin(), cuts.end());
  for (int64_t i = 0; i < tokens; ++i) {
    const Philox4 r = Philox(kSeed + 1, number * tokens + i);
    batch.ids.push_back(static_cast<int32_t>(r[0] % options.model.vocab));
    batch.targets.push_back(r[2] % 7 == 0 ? kIgnoredTarget
                                          : static_cast<int32_t>(r[1] % options.model.vocab));
  }
  return batch;
}

inline const RankGroups& GroupsOfOne() {
  static const std::unique_ptr<Communicator> world = MakeGroupOfOne();
  static const RankGroups groups = MakeGroups(*world, {});
  return groups;
}

// A model being trained, and what tests do to it.
struct Training {
  explicit Training(const StepOptions& options, const Mesh& mesh = {},
                    const RankGroups& groups = GroupsOfOne())
      : step(options, mesh, groups) {
    step.InitializeParameters(/*seed=*/5);
    step.ReserveWorkspace(int64_t{8} << 20);
  }

  // Step `number` of the run, whose batches are its own.
  StepReport Step(int64_t number, LoopDiagnostics* diagnostics = nullptr) {
    step.Begin(diagnostics != nullptr);
    const int64_t count = step.options().micro_batches;
    for (int64_t m = 0; m < count; ++m) {
      step.MicroBatch(RandomBatch(step.options(), number * count + m),
                      m == 0 ? diagnostics : nullptr);
    }
    return step.Finish({.step = number, .lr = 1e-3 / static_cast<double>(number), .maxes = {1, 2}});
  }
  // Masters and moments of everything.
  std::vector<std::vector<double>> State() {
    std::vector<std::vector<double>> state;
    for (const StatePiece& piece : step.optimizer().Owned())
      state.push_back(piece.data.ToDoubles());
    return state;
  }

  TrainStep step;
};

inline void ExpectSame(const StepReport& a, const StepReport& b) {
  EXPECT_EQ(a.sums, b.sums);
  EXPECT_EQ(a.maxes, b.maxes);
  EXPECT_EQ(a.counted_tokens, b.counted_tokens);
  EXPECT_EQ(a.nonfinite, b.nonfinite);
  EXPECT_STREQ(a.skipped, b.skipped);
  EXPECT_TRUE(a.grad_norm == b.grad_norm || (std::isnan(a.grad_norm) && std::isnan(b.grad_norm)));
}

}  // namespace lt2
