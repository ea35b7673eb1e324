// A whole language model whose vocabulary, heads and channels tensor-parallel ranks divide, against
// one rank. What mixers do is tensor_shard_test.cc's business.
#include <gtest/gtest.h>

#include <mutex>

#include "core/strings.h"
#include "parallel/thread_communicator.h"
#include "tests/support/tiny_model.h"

namespace lt2 {
namespace {

constexpr int64_t kTokens = 61;
constexpr uint64_t kSeed = 5;

struct Options {
  bool tied, exit_gate;
  RecomputePolicy recompute;
  bool early_seed;  // the forward is told z_loss, and makes the head's gradients
};

ModelConfig ConfigOf(const Options& options) {
  ModelConfig config = TinyConfig();
  config.tie_embeddings = options.tied;
  config.exit_gate = options.exit_gate;
  config.loops = 3;
  return config;
}

// What a rank gives, and in sums.grads what others have summands of.
struct Trace {
  TinyModel::Result result;
  LoopDiagnostics diagnostics;
  std::vector<double> scored, scored_early, hidden;
};

Trace RunModel(const Options& options, DType dtype, const TensorSplit& split, TensorShard* shard) {
  constexpr double kZLoss = 1e-2;
  const int rank = shard != nullptr ? shard->rank() : 0;
  TinyModel tiny(ConfigOf(options), dtype, Backend::kCpu, kSeed, split, rank);
  const TinyModel::Tokens tokens = RandomTokens(tiny.model.config(), kTokens, 4, kSeed);
  Trace trace;
  ForwardOptions forward{
      .recompute = options.recompute, .diagnostics = &trace.diagnostics, .tensor = shard};
  if (options.early_seed) forward.z_loss = kZLoss;
  trace.result = tiny.ForwardBackward(tokens, forward, kZLoss);
  // Ranks' parts are put together by whoever compares.
  if (shard != nullptr) {
    trace.result.grads.clear();
    for (const Param* param : tiny.model.params().all()) {
      AddHeld(*param, &trace.result.grads[param->spec.name]);
      if (param->spec.split.whole_gradient && rank > 0) trace.result.grads.erase(param->spec.name);
    }
  }
  const Documents documents = Documents::Of(tokens.cu_seqlens, {});
  const Tensor ids = Tensor::FromHost(tokens.ids, {kTokens}, {});
  const Tensor targets = Tensor::FromHost(tokens.targets, {kTokens}, {});
  const auto evaluate = [&] {
    return tiny.model.Evaluate(tiny.stream, ids, targets, documents, {.tensor = shard}).ToDoubles();
  };
  trace.scored = evaluate();
  if (options.exit_gate) tiny.model.set_exit_threshold(0.6);
  trace.scored_early = evaluate();
  trace.hidden = tiny.model.Hidden(tiny.stream, ids, documents, {.tensor = shard}).ToDoubles();
  return trace;
}

void ExpectNear(const std::vector<double>& got, const std::vector<double>& want,
                const std::string& name) {
  EXPECT_LE(RelativeDifference(got, want), 1e-10) << name;
}

class TensorModelTest : public testing::TestWithParam<std::tuple<Options, TensorSplit>> {};

TEST_P(TensorModelTest, IsAsOneRank) {
  const auto& [options, split] = GetParam();
  const Trace want = RunModel(options, DType::kF64, {}, nullptr);
  EXPECT_EQ(options.exit_gate, want.scored != want.scored_early);
  std::mutex one_at_a_time;
  std::map<std::string, std::vector<double>> sums;
  RunRanks(split.ranks, [&](Communicator& tp) {
    TensorShard shard(tp, split.sequence, kTokens);
    const Trace got = RunModel(options, DType::kF64, split, &shard);
    const std::lock_guard lock(one_at_a_time);
    SCOPED_TRACE(StrCat("rank ", tp.rank()));
    EXPECT_NEAR(got.result.loss, want.result.loss, 1e-12 * want.result.loss);
    ExpectNear(got.diagnostics.hidden_rms, want.diagnostics.hidden_rms, "hidden_rms");
    ExpectNear(got.diagnostics.gradient_norm, want.diagnostics.gradient_norm, "gradient_norm");
    ExpectNear(got.diagnostics.loss, want.diagnostics.loss, "loss");
    ExpectNear(got.diagnostics.first_token_mass, want.diagnostics.first_token_mass, "mass");
    ExpectNear(got.scored, want.scored, "scored");
    ExpectNear(got.scored_early, want.scored_early, "scored early");
    const int64_t width = static_cast<int64_t>(want.hidden.size()) / kTokens;
    const int64_t first = split.sequence ? shard.Begin(tp.rank()) : 0;
    const int64_t end = split.sequence ? shard.Begin(tp.rank() + 1) : kTokens;
    ExpectNear(got.hidden, {&want.hidden[first * width], &want.hidden[end * width]}, "hidden");
    for (const auto& [name, grad] : got.result.grads) {
      std::vector<double>& sum = sums[name];
      sum.resize(grad.size());
      std::ranges::transform(sum, grad, sum.begin(), std::plus<>());
    }
  });
  EXPECT_EQ(sums.size(), want.result.grads.size());
  for (const auto& [name, grad] : sums) ExpectNear(grad, want.result.grads.at(name), name);
}

std::vector<Options> AllOptions() {
  return {
      {.tied = true, .exit_gate = false, .recompute = RecomputePolicy::kNone, .early_seed = true},
      {.tied = false, .exit_gate = false, .recompute = RecomputePolicy::kMixer},
      {.tied = false, .exit_gate = true, .recompute = RecomputePolicy::kLoop},
      {.tied = true, .exit_gate = true, .recompute = RecomputePolicy::kBlock}};
}

INSTANTIATE_TEST_SUITE_P(Options, TensorModelTest,
                         testing::Combine(testing::ValuesIn(AllOptions()),
                                          testing::Values(TensorSplit{2}, TensorSplit{2, true},
                                                          TensorSplit{4}, TensorSplit{4, true})));

TEST(TensorModel, AGroupOfOneChangesNoBit) {
  for (const Options& options : AllOptions()) {
    for (const bool sequence : {false, true}) {
      const Trace want = RunModel(options, DType::kF32, {}, nullptr);
      RunRanks(1, [&](Communicator& tp) {
        const TensorSplit split{.ranks = 1, .sequence = sequence};
        TensorShard shard(tp, sequence, kTokens);
        const Trace got = RunModel(options, DType::kF32, split, &shard);
        EXPECT_EQ(got.result.loss, want.result.loss);
        EXPECT_EQ(got.result.grads, want.result.grads);
        EXPECT_EQ(got.diagnostics.gradient_norm, want.diagnostics.gradient_norm);
        EXPECT_EQ(got.scored, want.scored);
        EXPECT_EQ(got.hidden, want.hidden);
      });
    }
  }
}

}  // namespace
}  // namespace lt2
