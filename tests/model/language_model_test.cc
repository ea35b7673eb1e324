#include "model/language_model.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/allocator.h"
#include "model/decoder.h"
#include "tests/support/tiny_model.h"

namespace lt2 {
namespace {

constexpr int64_t kTokens = 90;  // ragged documents, more than one chunk of 64

void ExpectGradientsNear(const TinyModel::Result& got, const TinyModel::Result& want,
                         double tolerance) {
  EXPECT_NEAR(got.loss, want.loss, tolerance * std::abs(want.loss));
  for (const auto& [name, grad] : want.grads) {
    EXPECT_LE(RelativeDifference(got.grads.at(name), grad), tolerance) << name;
  }
}

void CheckCentralDifferences(const ModelConfig& config, Backend backend, int directions,
                             uint64_t seed) {
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  for (const auto& [name, error] : DerivativeErrors(config, backend, kTokens, directions, seed)) {
    EXPECT_LE(error, 1e-7) << name;
  }
}

TEST(LanguageModel, GradientsMatchCentralDifferencesOnCpu) {
  CheckCentralDifferences(TinyConfig(), Backend::kCpu, 20, 11);
}

TEST(LanguageModel, GradientsMatchCentralDifferencesOnReference) {
  CheckCentralDifferences(TinyConfig(), Backend::kReference, 2, 12);
}

TEST(LanguageModel, GradientsMatchCentralDifferencesUntiedOneLoop) {
  ModelConfig config = TinyConfig();
  config.tie_embeddings = false;
  config.loops = 1;
  CheckCentralDifferences(config, Backend::kCpu, 20, 13);
}

// Options that change a mixer's graph.
TEST(LanguageModel, GradientsOfPlainMixersMatchCentralDifferences) {
  ModelConfig config = TinyConfig();
  config.attention_gate = false;
  config.mixer_options["gdn"] = *ConfigTable::Parse(
      "heads = 2\nv_heads = 4\nhead_dim = 10\nconv = false\ngate = false\nallow_neg_eigval = true",
      "plain");
  config.mixer_options["full"] = *ConfigTable::Parse("qk_norm = true", "plain");
  CheckCentralDifferences(config, Backend::kCpu, 3, 14);
  CheckCentralDifferences(config, Backend::kReference, 1, 15);
}

TEST(LanguageModel, CpuAgreesWithReference) {
  for (uint64_t seed : {21, 22, 23}) {
    SCOPED_TRACE(seed);
    const TinyModel::Tokens tokens = RandomTokens(TinyConfig(), kTokens, 5, seed);
    const auto run = [&](DType dtype, Backend backend) {
      return TinyModel(TinyConfig(), dtype, backend, seed).ForwardBackward(tokens, {}, 1e-3);
    };
    const TinyModel::Result reference = run(DType::kF64, Backend::kReference);
    ExpectGradientsNear(run(DType::kF64, Backend::kCpu), reference, 1e-11);
    ExpectGradientsNear(run(DType::kF32, Backend::kCpu), reference, 1e-4);
  }
}

// A forward reads no parameter before it says so: what was not asked for yet is not a number.
TEST(LanguageModel, SaysWhichParametersItReads) {
  for (const bool tied : {true, false}) {
    for (const RecomputePolicy recompute : {RecomputePolicy::kNone, RecomputePolicy::kLoop}) {
      ModelConfig config = TinyConfig();
      config.tie_embeddings = tied;
      const TinyModel::Tokens tokens = RandomTokens(config, kTokens, 3, 31);
      TinyModel model(config, DType::kF64, Backend::kCpu);
      const TinyModel::Result expected = model.ForwardBackward(tokens);
      const std::vector<Param*> params = model.model.params().all();
      std::vector<Tensor> values;
      for (Param* param : params) {
        values.push_back(param->value.Clone());
        for (double& x : param->value.span<double>()) x = NAN;
      }
      size_t ready = 0;
      int calls = 0;
      const auto before_params = [&](int end) {
        ++calls;
        for (; ready < params.size() && static_cast<int>(ready) < end; ++ready) {
          params[ready]->value.CopyFrom(values[ready]);
        }
      };
      const TinyModel::Result got =
          model.ForwardBackward(tokens, {.recompute = recompute, .before_params = before_params});
      EXPECT_EQ(ready, params.size());
      EXPECT_GE(calls, config.layers + 2);  // the embedding, each layer, the rest
      EXPECT_EQ(got.loss, expected.loss);
      EXPECT_EQ(got.grads, expected.grads);
    }
  }
}

// T loops of N blocks against T·N blocks once, with the copies' gradients summed.
TEST(LanguageModel, LoopsEqualUnrolledCopies) {
  for (int64_t loops : {1, 2, 4}) {
    SCOPED_TRACE(loops);
    ModelConfig looped = TinyConfig();
    looped.loops = loops;
    looped.loop_residual = false;
    ModelConfig unrolled = looped;
    unrolled.loops = 1;
    unrolled.layers = looped.layers * loops;
    const TinyModel::Tokens tokens = RandomTokens(looped, kTokens, 3, 31);
    TinyModel a(looped, DType::kF64, Backend::kCpu), b(unrolled, DType::kF64, Backend::kCpu);
    const auto looped_name = [&](const std::string& name) {
      if (name.rfind("layers.", 0) != 0) return name;
      const size_t dot = name.find('.', 7);
      const int64_t layer = std::stoll(name.substr(7, dot - 7));
      return "layers." + std::to_string(layer % looped.layers) + name.substr(dot);
    };
    for (Param* param : b.model.params().all()) {
      param->value.CopyFrom(a.model.params().Find(looped_name(param->spec.name))->value);
    }
    const TinyModel::Result want = a.ForwardBackward(tokens);
    TinyModel::Result got = b.ForwardBackward(tokens);
    std::map<std::string, std::vector<double>> summed;
    for (auto& [name, grad] : got.grads) {
      std::vector<double>& sum = summed[looped_name(name)];
      sum.resize(grad.size());
      for (size_t i = 0; i < grad.size(); ++i) sum[i] += grad[i];
    }
    got.grads = summed;
    EXPECT_EQ(got.loss, want.loss);
    ExpectGradientsNear(got, want, 1e-13);  // only the order of the sums over copies differs
  }
}

TEST(LanguageModel, RecomputeGivesTheSameBits) {
  const TinyModel::Tokens tokens = RandomTokens(TinyConfig(), kTokens, 3, 41);
  TinyModel tiny(TinyConfig(), DType::kF32, Backend::kCpu);
  const TinyModel::Result plain = tiny.ForwardBackward(tokens);
  for (RecomputePolicy policy : {RecomputePolicy::kFfn, RecomputePolicy::kMixer,
                                 RecomputePolicy::kBlock, RecomputePolicy::kLoop}) {
    const TinyModel::Result again = tiny.ForwardBackward(tokens, {.recompute = policy});
    EXPECT_EQ(again.loss, plain.loss);
    EXPECT_EQ(again.grads, plain.grads) << "policy " << static_cast<int>(policy);
  }
}

TEST(LanguageModel, DocumentsDoNotSeeEachOther) {
  const ModelConfig config = TinyConfig();
  TinyModel tiny(config, DType::kF32, Backend::kCpu);
  for (Param* param : tiny.model.params().all()) {  // decay near 1: what leaks would show
    if (param->spec.name.ends_with("A_log")) {
      for (float& value : param->value.span<float>()) value = std::log(0.05f);
    }
  }
  TinyModel::Tokens tokens = RandomTokens(config, kTokens, 4, 51);
  const auto hidden = [&] {
    const Documents documents = Documents::Of(tokens.cu_seqlens, tiny.stream.device);
    return tiny.model
        .Hidden(tiny.stream, Tensor::FromHost(tokens.ids, {kTokens}, tiny.stream.device), documents)
        .ToDoubles();
  };
  const std::vector<double> before = hidden();
  const int32_t begin = tokens.cu_seqlens[1], end = tokens.cu_seqlens[2];
  for (int32_t t = begin; t < end; ++t) tokens.ids[t] = (tokens.ids[t] + 5) % config.vocab;
  const std::vector<double> after = hidden();
  for (int64_t t = 0; t < kTokens; ++t) {
    const bool changed = t >= begin && t < end;
    for (int64_t c = 0; c < config.width; ++c) {
      const int64_t at = t * config.width + c;
      EXPECT_EQ(after[at] != before[at], changed) << "token " << t;
    }
  }
}

TEST(LanguageModel, DecodingGivesTheTrainingLogits) {
  for (int64_t loops : {1, 2, 4}) {
    for (DType dtype : {DType::kF64, DType::kF32}) {
      SCOPED_TRACE(testing::Message() << "loops " << loops << " " << dtype);
      ModelConfig config = TinyConfig();
      config.loops = loops;
      TinyModel tiny(config, dtype, Backend::kCpu);
      const int64_t length = 75;
      const TinyModel::Tokens tokens = RandomTokens(config, 2 * length, 1, 61);
      const Documents rows = Documents::Rows(2, length, tiny.stream.device);
      const Tensor all = tiny.model.Logits(
          tiny.stream,
          tiny.model.Hidden(tiny.stream,
                            Tensor::FromHost(tokens.ids, {2 * length}, tiny.stream.device), rows));
      const std::vector<double> want = all.ToDoubles();
      // Prompts of different lengths, then one token at a time.
      const int64_t starts[2] = {66, 2};
      Decoder decoder(tiny.model, tiny.stream, 2, length, dtype);
      std::vector<std::vector<int32_t>> prompts;
      for (int64_t b = 0; b < 2; ++b) {
        const auto first = tokens.ids.begin() + b * length;
        prompts.emplace_back(first, first + starts[b]);
      }
      const double tolerance = dtype == DType::kF64 ? 1e-11 : 1e-4;
      Tensor logits = decoder.Prefill(prompts);
      for (int64_t step = 0; starts[0] + step < length; ++step) {
        const std::vector<double> got = logits.ToDoubles();
        std::vector<int32_t> next;
        for (int64_t b = 0; b < 2; ++b) {
          const int64_t at = b * length + starts[b] + step - 1;
          const std::vector<double> row(want.begin() + at * config.vocab,
                                        want.begin() + (at + 1) * config.vocab);
          const std::vector<double> mine(got.begin() + b * config.vocab,
                                         got.begin() + (b + 1) * config.vocab);
          EXPECT_LE(RelativeDifference(mine, row), tolerance)
              << "sequence " << b << " step " << step;
          next.push_back(tokens.ids[at + 1]);
        }
        logits = decoder.Step(next);
      }
    }
  }
}

// What the objective weighs is known before the forward or told to Seeds: the same bits.
TEST(LanguageModel, GradientsOfTheHeadMadeInItsForward) {
  constexpr double kZLoss = 1e-2;
  for (const bool tied : {true, false}) {
    for (const bool exits : {false, true}) {
      ModelConfig config = TinyConfig();
      config.tie_embeddings = tied;
      config.exit_gate = exits;
      const TinyModel::Tokens tokens = RandomTokens(config, kTokens, 3, 91);
      for (const RecomputePolicy policy : {RecomputePolicy::kNone, RecomputePolicy::kLoop}) {
        for (const DType dtype : {DType::kF32, DType::kF64}) {
          SCOPED_TRACE(testing::Message() << tied << exits << static_cast<int>(policy));
          TinyModel tiny(config, dtype, Backend::kCpu);
          const TinyModel::Result told =
              tiny.ForwardBackward(tokens, {.recompute = policy}, kZLoss);
          LoopDiagnostics diagnostics;
          const TinyModel::Result known = tiny.ForwardBackward(
              tokens, {.recompute = policy, .diagnostics = &diagnostics, .z_loss = kZLoss}, kZLoss);
          EXPECT_EQ(known.loss, told.loss);
          EXPECT_EQ(known.grads, told.grads);
        }
      }
    }
  }
}

TEST(LanguageModel, MetaRunCountsWhatTheCpuHoldsAndComputes) {
  const ModelConfig config = TinyConfig();
  const TinyModel::Tokens tokens = RandomTokens(config, kTokens, 3, 71);
  for (RecomputePolicy policy : {RecomputePolicy::kNone, RecomputePolicy::kBlock}) {
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
      // Exact chunk algorithms do more than the model's FLOPs, never less.
      EXPECT_GT(meter.flops(), 2.9 * kTokens * tiny.model.FlopsPerToken(kTokens / 3));
    }
  }
}

TEST(LanguageModel, DiagnosticsSeeEveryLoop) {
  ModelConfig config = TinyConfig();
  config.loops = 3;
  const TinyModel::Tokens tokens = RandomTokens(config, kTokens, 3, 81);
  TinyModel tiny(config, DType::kF64, Backend::kCpu);
  const TinyModel::Result plain = tiny.ForwardBackward(tokens);
  LoopDiagnostics diagnostics;
  const TinyModel::Result seen = tiny.ForwardBackward(tokens, {.diagnostics = &diagnostics});
  EXPECT_EQ(seen.loss, plain.loss);
  EXPECT_EQ(seen.grads, plain.grads);
  int64_t counted = 0;
  for (int32_t target : tokens.targets) counted += target >= 0;
  ASSERT_EQ(diagnostics.loss.size(), 3u);
  EXPECT_NEAR(diagnostics.loss[2], plain.loss / static_cast<double>(counted), 1e-12);
  EXPECT_NE(diagnostics.loss[0], diagnostics.loss[2]);
  for (int t = 0; t < 3; ++t) {
    EXPECT_GT(diagnostics.hidden_rms[t], 0);
    EXPECT_GT(diagnostics.gradient_norm[t], 0);
    EXPECT_GT(diagnostics.first_token_mass[t], 0);
    EXPECT_LT(diagnostics.first_token_mass[t], 1);
  }
}

}  // namespace
}  // namespace lt2
