// Sandwich norms, norms between loops, the exit gate: gradients, recompute, decoding, memory.
#include <gtest/gtest.h>

#include <cmath>

#include "core/allocator.h"
#include "kernels/exit_loss.h"
#include "model/decoder.h"
#include "tests/support/tiny_model.h"

namespace lt2 {
namespace {

constexpr int64_t kTokens = 90;  // ragged documents, more than one chunk of 64

struct Options {
  std::string name;
  bool sandwich_norm, loop_norm, exit_gate;
};
void PrintTo(const Options& options, std::ostream* os) { *os << options.name; }
const Options kAlone[] = {{"sandwich_norm", true, false, false},
                          {"loop_norm", false, true, false},
                          {"exit_gate", false, false, true}};
const Options kTogether = {"together", true, true, true};

ModelConfig ConfigWith(const Options& options, int64_t loops = 2) {
  ModelConfig config = TinyConfig();
  config.loops = loops;
  config.sandwich_norm = options.sandwich_norm;
  config.loop_norm = options.loop_norm;
  config.exit_gate = options.exit_gate;
  config.exit_entropy = 0.3;
  return config;
}

class LoopOptions : public testing::TestWithParam<Options> {};

TEST_P(LoopOptions, GradientsMatchCentralDifferences) {
  for (bool tied : {true, false}) {
    ModelConfig config = ConfigWith(GetParam(), tied ? 2 : 3);
    config.tie_embeddings = tied;
    for (const auto& [name, error] : DerivativeErrors(config, Backend::kCpu, kTokens, 4, 17)) {
      EXPECT_LE(error, 1e-7) << name << (tied ? " tied" : " untied");
    }
  }
}

// Float32 may be off by what float64 is off, times 2^29: norms after norms of these random weights
// multiply a rounding error a few thousandfold, whatever the precision.
TEST_P(LoopOptions, CpuAgreesWithReference) {
  const ModelConfig config = ConfigWith(GetParam(), 3);
  const TinyModel::Tokens tokens = RandomTokens(config, kTokens, 5, 23);
  const auto run = [&](DType dtype, Backend backend) {
    return TinyModel(config, dtype, backend, 23).ForwardBackward(tokens, {}, 1e-3);
  };
  const TinyModel::Result reference = run(DType::kF64, Backend::kReference);
  const auto worst = [&](DType dtype) {
    const TinyModel::Result got = run(dtype, Backend::kCpu);
    double error = std::abs(got.loss - reference.loss) / reference.loss;
    for (const auto& [name, grad] : reference.grads) {
      error = std::max(error, RelativeDifference(got.grads.at(name), grad));
    }
    return error;
  };
  const double in_f64 = worst(DType::kF64);
  EXPECT_LE(in_f64, 1e-11);
  EXPECT_LE(worst(DType::kF32), 4 * std::ldexp(in_f64, 29));
}

TEST_P(LoopOptions, RecomputeGivesTheSameBits) {
  const ModelConfig config = ConfigWith(GetParam(), 3);
  const TinyModel::Tokens tokens = RandomTokens(config, kTokens, 3, 41);
  TinyModel tiny(config, DType::kF32, Backend::kCpu);
  const TinyModel::Result plain = tiny.ForwardBackward(tokens);
  for (RecomputePolicy policy :
       {RecomputePolicy::kMixer, RecomputePolicy::kBlock, RecomputePolicy::kLoop}) {
    LoopDiagnostics diagnostics;
    const TinyModel::Result again =
        tiny.ForwardBackward(tokens, {.recompute = policy, .diagnostics = &diagnostics});
    EXPECT_EQ(again.loss, plain.loss);
    EXPECT_EQ(again.grads, plain.grads) << "policy " << static_cast<int>(policy);
    ASSERT_EQ(diagnostics.loss.size(), 3u);
    for (int t = 0; t < 3; ++t) {
      EXPECT_GT(diagnostics.loss[t], 1);
      EXPECT_GT(diagnostics.gradient_norm[t], 0);
    }
  }
}

// Logits of all positions of 2 rows.
std::vector<double> TrainingLogits(TinyModel& tiny, const TinyModel::Tokens& tokens,
                                   int64_t length) {
  const Documents rows = Documents::Rows(2, length, tiny.stream.device);
  const Tensor ids = Tensor::FromHost(tokens.ids, {2 * length}, tiny.stream.device);
  return tiny.model.Logits(tiny.stream, tiny.model.Hidden(tiny.stream, ids, rows)).ToDoubles();
}

// With every threshold: each token leaves after the same loop however it is computed.
TEST_P(LoopOptions, DecodingGivesTheTrainingLogits) {
  constexpr int64_t kLength = 70, kPrompt = 64;
  const ModelConfig config = ConfigWith(GetParam(), 4);
  for (double threshold : {1.0, 0.8, 0.4}) {
    if (threshold < 1 && !config.exit_gate) continue;
    for (DType dtype : {DType::kF64, DType::kF32}) {
      SCOPED_TRACE(testing::Message() << "threshold " << threshold << " " << dtype);
      TinyModel tiny(config, dtype, Backend::kCpu);
      tiny.model.set_exit_threshold(threshold);
      const TinyModel::Tokens tokens = RandomTokens(config, 2 * kLength, 1, 61);
      const std::vector<double> want = TrainingLogits(tiny, tokens, kLength);
      Decoder decoder(tiny.model, tiny.stream, 2, kLength, dtype);
      std::vector<std::vector<int32_t>> prompts;
      for (int64_t b = 0; b < 2; ++b) {
        const auto first = tokens.ids.begin() + b * kLength;
        prompts.emplace_back(first, first + kPrompt);
      }
      Tensor logits = decoder.Prefill(prompts);
      for (int64_t at = kPrompt - 1; at + 1 < kLength; ++at) {
        const std::vector<double> got = logits.ToDoubles();
        std::vector<int32_t> next;
        for (int64_t b = 0; b < 2; ++b) {
          const int64_t V = config.vocab, row = b * kLength + at;
          const std::vector<double> all(want.begin() + row * V, want.begin() + (row + 1) * V);
          const std::vector<double> mine(got.begin() + b * V, got.begin() + (b + 1) * V);
          EXPECT_LE(RelativeDifference(mine, all), dtype == DType::kF64 ? 1e-11 : 1e-4)
              << "sequence " << b << " token " << at;
          next.push_back(tokens.ids[row + 1]);
        }
        logits = decoder.Step(next);
      }
    }
  }
}

// A token changes itself and what follows in its document, nothing else, also where it leaves
// early.
TEST_P(LoopOptions, CausalWithinDocuments) {
  const ModelConfig config = ConfigWith(GetParam(), 3);
  TinyModel tiny(config, DType::kF32, Backend::kCpu);
  if (config.exit_gate) tiny.model.set_exit_threshold(0.6);
  TinyModel::Tokens tokens = RandomTokens(config, kTokens, 3, 51);
  const auto hidden = [&] {
    const Documents documents = Documents::Of(tokens.cu_seqlens, tiny.stream.device);
    const Tensor ids = Tensor::FromHost(tokens.ids, {kTokens}, tiny.stream.device);
    return tiny.model.Hidden(tiny.stream, ids, documents).ToDoubles();
  };
  const std::vector<double> before = hidden();
  const int32_t changed = (tokens.cu_seqlens[1] + tokens.cu_seqlens[2]) / 2;
  tokens.ids[changed] = (tokens.ids[changed] + 5) % config.vocab;
  const std::vector<double> after = hidden();
  for (int64_t t = 0; t < kTokens; ++t) {
    const auto at = t * config.width;
    const bool same =
        std::equal(after.begin() + at, after.begin() + at + config.width, before.begin() + at);
    EXPECT_EQ(same, t < changed || t >= tokens.cu_seqlens[2]) << "token " << t;
  }
}

TEST_P(LoopOptions, MetaRunCountsWhatTheCpuHolds) {
  const ModelConfig config = ConfigWith(GetParam(), 3);
  const TinyModel::Tokens tokens = RandomTokens(config, kTokens, 3, 71);
  for (RecomputePolicy policy : {RecomputePolicy::kNone, RecomputePolicy::kLoop}) {
    CachingAllocator& host = CachingAllocator::Of({Backend::kCpu});
    const int64_t before = host.stats().live;
    host.ResetPeak();
    {
      TinyModel tiny(config, DType::kF32, Backend::kCpu);
      tiny.ForwardBackward(tokens, {.recompute = policy});
    }
    const int64_t held = host.stats().peak - before;
    const MetaMeter meter;
    TinyModel tiny(config, DType::kF32, Backend::kMeta);
    tiny.ForwardBackward(tokens, {.recompute = policy});
    EXPECT_NEAR(static_cast<double>(meter.memory().peak), static_cast<double>(held), 0.02 * held);
    if (policy == RecomputePolicy::kNone) {
      EXPECT_GT(meter.flops(), 2.9 * kTokens * tiny.model.FlopsPerToken(kTokens / 3));
    }
  }
}

int64_t PeakOf(const ModelConfig& config, int64_t tokens, RecomputePolicy policy) {
  const MetaMeter meter;
  TinyModel tiny(config, DType::kF32, Backend::kMeta);
  tiny.ForwardBackward(RandomTokens(config, tokens, 1, 5), {.recompute = policy});
  return meter.memory().peak;
}

// Twice the tokens or loops: at most twice the memory, also where logits are not kept.
TEST_P(LoopOptions, MemoryIsLinear) {
  for (RecomputePolicy policy : {RecomputePolicy::kNone, RecomputePolicy::kLoop}) {
    const ModelConfig config = ConfigWith(GetParam(), 4);
    const int64_t once = PeakOf(config, 4096, policy), twice = PeakOf(config, 8192, policy);
    EXPECT_LT(twice, 2 * once + 1000);
    EXPECT_LT(PeakOf(ConfigWith(GetParam(), 8), 4096, policy), 2 * once + 1000);
  }
}

INSTANTIATE_TEST_SUITE_P(Options, LoopOptions,
                         testing::Values(kAlone[0], kAlone[1], kAlone[2], kTogether),
                         [](const auto& info) { return info.param.name; });

void SetGate(TinyModel& tiny, double bias) {
  tiny.model.params().Find("exit_gate.weight")->value.Zero();
  tiny.model.params().Find("exit_gate.bias")->value.data<double>()[0] = bias;
}

// A gate that never opens leaves the model without one: loss, z-loss and every gradient.
TEST(ExitGate, ForcedToTheLastLoopIsThePlainModel) {
  for (const Options& options : {kAlone[2], kTogether}) {
    const ModelConfig config = ConfigWith(options, 3);
    ModelConfig plain_config = config;
    plain_config.exit_gate = false;
    const TinyModel::Tokens tokens = RandomTokens(config, kTokens, 3, 31);
    TinyModel gated(config, DType::kF64, Backend::kCpu);
    TinyModel plain(plain_config, DType::kF64, Backend::kCpu);
    SetGate(gated, -1e4);
    EXPECT_NEAR(gated.LossOnly(tokens, 1e-2), plain.LossOnly(tokens, 1e-2), 1e-10);
    const TinyModel::Result got = gated.ForwardBackward(tokens, {}, 1e-2);
    const TinyModel::Result want = plain.ForwardBackward(tokens, {}, 1e-2);
    EXPECT_NEAR(got.loss, want.loss, 1e-12 * want.loss);
    for (const auto& [name, grad] : want.grads) {
      EXPECT_LE(RelativeDifference(got.grads.at(name), grad), 1e-13) << name;
    }
  }
}

// p_1 + … + p_T = 1, and the expected loss mixes what the diagnostics say of each loop.
TEST(ExitGate, EvenGatesMixTheLoops) {
  const ModelConfig config = ConfigWith(kTogether, 3);
  const TinyModel::Tokens tokens = RandomTokens(config, kTokens, 3, 33);
  TinyModel tiny(config, DType::kF64, Backend::kCpu);
  const Documents documents = Documents::Of(tokens.cu_seqlens, tiny.stream.device);
  const auto sums_of = [&](LoopDiagnostics* diagnostics) {
    Tape tape(tiny.stream);
    return tiny.model
        .Forward(tape, Tensor::FromHost(tokens.ids, {kTokens}, tiny.stream.device),
                 Tensor::FromHost(tokens.targets, {kTokens}, tiny.stream.device), documents,
                 {.diagnostics = diagnostics})
        .sums.value.ToDoubles();
  };
  const std::vector<double> free = sums_of(nullptr);
  double all = 0;
  for (int t = 0; t < 3; ++t) all += free[kExitProbabilitySums + t];
  EXPECT_NEAR(all, free[kCountedSum], 1e-11);
  SetGate(tiny, 0);
  LoopDiagnostics diagnostics;
  const std::vector<double> even = sums_of(&diagnostics);
  const double mixed =
      0.5 * diagnostics.loss[0] + 0.25 * diagnostics.loss[1] + 0.25 * diagnostics.loss[2];
  EXPECT_NEAR(even[kLossSum], mixed * even[kCountedSum], 1e-11);
  EXPECT_NEAR(even[kExitEntropySum], 1.5 * std::log(2) * even[kCountedSum], 1e-11);
}

// The first loop reaches any low threshold: what a model of one loop gives.
TEST(ExitGate, LowThresholdReadsTheFirstLoop) {
  for (const Options& options : {kAlone[2], kTogether}) {
    const ModelConfig config = ConfigWith(options, 3);
    ModelConfig one_config = config;
    one_config.loops = 1;
    one_config.exit_gate = false;
    TinyModel gated(config, DType::kF64, Backend::kCpu);
    TinyModel one(one_config, DType::kF64, Backend::kCpu);
    for (Param* param : one.model.params().all()) {
      const Tensor from = gated.model.params().Find(param->spec.name)->value;
      param->value.CopyFrom(param->spec.name == "loop.residual" ? from.Rows(0, 1) : from);
    }
    const TinyModel::Tokens tokens = RandomTokens(config, 40, 1, 35);
    gated.model.set_exit_threshold(1e-9);
    EXPECT_EQ(TrainingLogits(gated, tokens, 20), TrainingLogits(one, tokens, 20));
    gated.model.set_exit_threshold(1);
    EXPECT_NE(TrainingLogits(gated, tokens, 20), TrainingLogits(one, tokens, 20));
  }
}

}  // namespace
}  // namespace lt2
