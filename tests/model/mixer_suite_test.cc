// What every mixer owes, over every line of mixers.def: each kind as the only mixer of a small
// model, and together with full attention. A new line is tested without being asked.
#include <gtest/gtest.h>

#include <random>

#include "absl/strings/str_cat.h"
#include "model/decoder.h"
#include "tests/model/mixer_cases.h"
#include "tests/support/tiny_model.h"

namespace lt2 {
namespace {

using Tokens = TinyModel::Tokens;

class MixerSuite : public testing::TestWithParam<MixerCase> {
 protected:
  ModelConfig Config(const std::vector<std::string>& more = {}) const {
    return ConfigOf(GetParam(), more);
  }
};

std::vector<double> HiddenOf(TinyModel& tiny, const Tokens& tokens) {
  const Device device = tiny.stream.device;
  const Documents documents = Documents::Of(tokens.cu_seqlens, device);
  const Tensor ids = Tensor::FromHost(tokens.ids, {documents.tokens()}, device);
  return tiny.model.Hidden(tiny.stream, ids, documents).ToDoubles();
}

std::span<const double> Row(const std::vector<double>& rows, int64_t row, int64_t width) {
  return std::span(rows).subspan(row * width, width);
}

bool SameRow(const std::vector<double>& a, const std::vector<double>& b, int64_t row,
             int64_t width) {
  return std::ranges::equal(Row(a, row, width), Row(b, row, width));
}

double RowDifference(std::span<const double> a, std::span<const double> b) {
  return RelativeDifference({a.begin(), a.end()}, {b.begin(), b.end()});
}

void ExpectNear(const TinyModel::Result& got, const TinyModel::Result& want, double tolerance) {
  EXPECT_NEAR(got.loss, want.loss, tolerance * std::abs(want.loss));
  ASSERT_EQ(got.grads.size(), want.grads.size());
  for (const auto& [name, grad] : want.grads) {
    EXPECT_LE(RelativeDifference(got.grads.at(name), grad), tolerance) << name;
  }
}

// Decays so near to 1 that what leaks over a border would show far from it.
void ForgetSlowly(TinyModel& tiny) {
  for (Param* param : tiny.model.params().all()) {
    const std::string& name = param->spec.name;
    const bool rate = name.ends_with("A_log");
    const bool bias = name.ends_with("gk_proj.1.bias") || name.ends_with("fgate_preact.bias") ||
                      name.ends_with("decay.bias");
    if (!rate && !bias) continue;
    for (float& value : param->value.span<float>()) value = rate ? std::log(0.01f) : 7.0f;
  }
}

TEST_P(MixerSuite, DocumentsDoNotSeeEachOther) {
  const ModelConfig config = Config();
  for (const bool slowly : {false, true}) {
    for (const uint64_t seed : {51, 52}) {
      SCOPED_TRACE(absl::StrCat("seed ", seed, slowly ? " slow decay" : ""));
      TinyModel tiny(config, DType::kF32, Backend::kCpu, seed);
      if (slowly) ForgetSlowly(tiny);
      Tokens tokens = RandomTokens(config, 150, 4, seed);
      const std::vector<double> before = HiddenOf(tiny, tokens);
      const int32_t begin = tokens.cu_seqlens[1], end = tokens.cu_seqlens[2];
      for (int32_t t = begin; t < end; ++t) tokens.ids[t] = (tokens.ids[t] + 5) % config.vocab;
      const std::vector<double> after = HiddenOf(tiny, tokens);
      for (int64_t t = 0; t < 150; ++t) {
        EXPECT_EQ(!SameRow(before, after, t, config.width), t >= begin && t < end) << "token " << t;
      }
    }
  }
}

// Every token has an id of its own, so that a row of the embedding's gradient is the gradient with
// respect to that token's input.
TEST_P(MixerSuite, GradientsReachNoLaterTokenAndNoOtherDocument) {
  constexpr int64_t kTokens = 150, kDocument = 20;  // the second document begins there
  const ModelConfig config = Config({absl::StrCat("vocab=", kTokens), "tie_embeddings=false"});
  TinyModel tiny(config, DType::kF32, Backend::kCpu, 61);
  tiny.auxiliary_weight = 0;
  Tokens tokens{
      .ids = {}, .targets = std::vector<int32_t>(kTokens, -100), .cu_seqlens = {0, 20, kTokens}};
  for (int32_t i = 0; i < kTokens; ++i) tokens.ids.push_back((7 * i + 3) % kTokens);
  for (const int64_t t : {3, 20, 21, 83, 84, 149}) {
    SCOPED_TRACE(absl::StrCat("output of token ", t));
    tokens.targets[t] = 1;
    const std::vector<double> grad = tiny.ForwardBackward(tokens).grads.at("embed.weight");
    tokens.targets[t] = -100;
    const int64_t begin = t < kDocument ? 0 : kDocument;
    int64_t earlier = 0;  // tokens that t reads beside its own
    for (int64_t s = 0; s < kTokens; ++s) {
      const auto row = Row(grad, tokens.ids[s], config.width);
      const bool reached = std::ranges::any_of(row, [](double g) { return g != 0; });
      earlier += reached && s < t;
      const int64_t always = ReadsChosenKeysOnly(GetParam()) ? t : t - 1;
      if (s < begin || s > t) {
        EXPECT_FALSE(reached) << "input of token " << s;
      } else if (s >= always) {
        EXPECT_TRUE(reached) << "input of token " << s;
      }
    }
    EXPECT_EQ(earlier > 0, t > begin);
  }
}

TEST_P(MixerSuite, LaterTokensChangeNothingBefore) {
  const ModelConfig config = Config();
  constexpr int64_t kTokens = 140;
  TinyModel tiny(config, DType::kF32, Backend::kCpu, 65);
  const Tokens tokens = RandomTokens(config, kTokens, 1, 65);
  const std::vector<double> before = HiddenOf(tiny, tokens);
  for (const int64_t cut : {1, 17, 63, 64, 130}) {
    Tokens changed = tokens;
    for (int64_t t = cut; t < kTokens; ++t) changed.ids[t] = (changed.ids[t] + 3) % config.vocab;
    const std::vector<double> after = HiddenOf(tiny, changed);
    for (int64_t t = 0; t < kTokens; ++t) {
      EXPECT_EQ(SameRow(before, after, t, config.width), t < cut)
          << "token " << t << " cut " << cut;
    }
  }
}

TEST_P(MixerSuite, DecodingAfterAnyPromptGivesTheTrainingLogits) {
  constexpr int64_t kSequences = 3, kLength = 75, kSteps = 12;
  for (const int64_t loops : {1, 2, 4}) {
    for (const DType dtype : {DType::kF64, DType::kF32}) {
      const uint64_t seed = 70 + loops;
      SCOPED_TRACE(testing::Message() << "loops " << loops << " " << dtype << " seed " << seed);
      const ModelConfig config = Config({absl::StrCat("loops=", loops)});
      TinyModel tiny(config, dtype, Backend::kCpu, seed);
      const Tokens tokens = RandomTokens(config, kSequences * kLength, 1, seed);
      const Documents rows = Documents::Rows(kSequences, kLength, tiny.stream.device);
      const Tensor ids = Tensor::FromHost(tokens.ids, {rows.tokens()}, tiny.stream.device);
      const std::vector<double> want =
          tiny.model.Logits(tiny.stream, tiny.model.Hidden(tiny.stream, ids, rows)).ToDoubles();

      std::mt19937_64 random(seed);
      const auto anywhere = static_cast<int64_t>(1 + random() % (kLength - kSteps));
      const int64_t starts[kSequences] = {1, kLength - kSteps, anywhere};
      std::vector<std::vector<int32_t>> prompts;
      for (int64_t b = 0; b < kSequences; ++b) {
        const auto first = tokens.ids.begin() + b * kLength;
        prompts.emplace_back(first, first + starts[b]);
      }
      Decoder decoder(tiny.model, tiny.stream, kSequences, kLength, dtype);
      Tensor logits = decoder.Prefill(prompts);
      for (int64_t step = 0; step < kSteps; ++step) {
        const std::vector<double> got = logits.ToDoubles();
        std::vector<int32_t> next;
        for (int64_t b = 0; b < kSequences; ++b) {
          const int64_t at = b * kLength + starts[b] + step - 1;
          EXPECT_LE(RowDifference(Row(got, b, config.vocab), Row(want, at, config.vocab)),
                    dtype == DType::kF64 ? 1e-11 : 1e-4)
              << "prompt of " << starts[b] << " step " << step;
          next.push_back(tokens.ids[at + 1]);
        }
        logits = decoder.Step(next);
      }
    }
  }
}

// How far rounding the parameters to float32 alone may move a gradient: half a last bit, up or
// down.
double WorstMoveByRounding(const ModelConfig& config, const Tokens& tokens, uint64_t seed,
                           const TinyModel::Result& exact) {
  TinyModel moved(config, DType::kF64, Backend::kCpu, seed);
  std::mt19937_64 random(seed);
  for (Param* param : moved.model.params().all()) {
    for (double& x : param->value.span<double>()) x *= 1 + (random() % 2 ? 0x1p-24 : -0x1p-24);
  }
  double worst = 0;
  for (const auto& [name, grad] : moved.ForwardBackward(tokens, {}, 1e-3).grads) {
    worst = std::max(worst, RelativeDifference(grad, exact.grads.at(name)));
  }
  return worst;
}

TEST_P(MixerSuite, CpuAgreesWithReference) {
  const ModelConfig config = Config();
  for (const uint64_t seed : {21, 22}) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    const Tokens tokens = RandomTokens(config, 90, 4, seed);
    const auto run = [&](DType dtype, Backend backend) {
      return TinyModel(config, dtype, backend, seed).ForwardBackward(tokens, {}, 1e-3);
    };
    const TinyModel::Result reference = run(DType::kF64, Backend::kReference);
    ExpectNear(run(DType::kF64, Backend::kCpu), reference, 1e-10);
    // Random gates and few channels make some gradients steep: mlstm's norm turns round where a
    // first <q, k> changes its sign.
    const double moved = WorstMoveByRounding(config, tokens, seed, reference);
    ExpectNear(run(DType::kF32, Backend::kCpu), reference, std::max(1e-4, 20 * moved));
  }
}

// The derivative of the loss along a random direction of each parameter (float64). The mixers' own
// losses stay out: they may stop gradients on purpose.
TEST_P(MixerSuite, GradientsAreDerivatives) {
  const ModelConfig config = Config();
  const uint64_t seed = 31;
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  const double z_loss = 1e-2;
  TinyModel tiny(config, DType::kF64, Backend::kCpu, seed);
  tiny.auxiliary_weight = 0;
  const Tokens tokens = RandomTokens(config, 80, 3, seed);
  const TinyModel::Result result = tiny.ForwardBackward(tokens, {}, z_loss);
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  for (Param* param : tiny.model.params().all()) {
    const std::vector<double> base = param->value.ToDoubles();
    const std::vector<double>& grad = result.grads.at(param->spec.name);
    int jumps = 0;
    for (int trial = 0; trial < 2; ++trial) {
      std::vector<double> direction(base.size());
      double length = 0, norm = 0, slope = 0;
      for (double& x : direction) x = normal(random), length += x * x;
      for (size_t i = 0; i < base.size(); ++i) {
        direction[i] /= std::sqrt(length);
        norm += grad[i] * grad[i];
        slope += grad[i] * direction[i];
      }
      const auto at = [&](double step) {
        double* value = param->value.data<double>();
        for (size_t i = 0; i < base.size(); ++i) value[i] = base[i] + step * direction[i];
        return tiny.LossOnly(tokens, z_loss);
      };
      const double h = 2e-5;  // truncation ~ h^4, rounding ~ 1e-16 / h
      const double near = (at(h) - at(-h)) / (2 * h);
      const double far = (at(2 * h) - at(-2 * h)) / (4 * h);
      const double numeric = (4 * near - far) / 3;
      at(0);
      // Relative to the gradient's size: a direction nearly orthogonal to it has no digits. A small
      // gradient is known only up to the rounding of the loss, some 2^-53 of it over h.
      const double allowed = std::max(1e-7 * std::sqrt(norm), 3e-11 * result.loss);
      // A choice of keys that changes within the step leaves no derivative to compare with: another
      // direction, then. The loss alone tells.
      if (ChoosesKeys(GetParam()) && std::abs(near - far) > 10 * allowed) {
        ASSERT_LT(++jumps, 10) << param->spec.name;
        --trial;
        continue;
      }
      EXPECT_NEAR(numeric, slope, allowed) << param->spec.name;
    }
  }
}

TEST_P(MixerSuite, RecomputeGivesTheSameBits) {
  const ModelConfig config = Config();
  const Tokens tokens = RandomTokens(config, 90, 3, 41);
  TinyModel tiny(config, DType::kF32, Backend::kCpu, 41);
  const TinyModel::Result plain = tiny.ForwardBackward(tokens);
  for (const RecomputePolicy policy : {RecomputePolicy::kFfn, RecomputePolicy::kMixer,
                                       RecomputePolicy::kBlock, RecomputePolicy::kLoop}) {
    const TinyModel::Result again = tiny.ForwardBackward(tokens, {.recompute = policy});
    EXPECT_EQ(again.loss, plain.loss);
    EXPECT_EQ(again.grads, plain.grads) << "policy " << static_cast<int>(policy);
  }
}

TEST_P(MixerSuite, RebuildingGivesTheSameBits) {
  const ModelConfig config = Config();
  const Tokens tokens = RandomTokens(config, 90, 3, 43);
  TinyModel tiny(config, DType::kF64, Backend::kCpu, 43);
  const TinyModel::Result plain = tiny.ForwardBackward(tokens);
  for (const Rebuild rebuild : {Rebuild::kCheap, Rebuild::kProducts}) {
    tiny.rebuild = rebuild;
    for (const RecomputePolicy policy :
         {RecomputePolicy::kNone, RecomputePolicy::kMixer, RecomputePolicy::kLoop}) {
      const TinyModel::Result again = tiny.ForwardBackward(tokens, {.recompute = policy});
      EXPECT_EQ(again.loss, plain.loss);
      EXPECT_EQ(again.grads, plain.grads) << "policy " << Name(policy);
    }
  }
}

TEST_P(MixerSuite, LengthsAroundChunkEdges) {
  const ModelConfig config = Config({"loops=1"});
  Tokens packed{.cu_seqlens = {0}};
  for (const int32_t length : {1, 63, 64, 65, 127, 128, 129}) {
    packed.cu_seqlens.push_back(packed.cu_seqlens.back() + length);
  }
  const Tokens drawn = RandomTokens(config, packed.cu_seqlens.back(), 1, 91);
  packed.ids = drawn.ids, packed.targets = drawn.targets;
  TinyModel reference(config, DType::kF64, Backend::kReference, 91);
  TinyModel tiny(config, DType::kF64, Backend::kCpu, 91);
  ExpectNear(tiny.ForwardBackward(packed), reference.ForwardBackward(packed), 1e-10);

  const std::vector<double> together = HiddenOf(tiny, packed);
  for (size_t d = 0; d + 1 < packed.cu_seqlens.size(); ++d) {
    const int32_t begin = packed.cu_seqlens[d], length = packed.cu_seqlens[d + 1] - begin;
    SCOPED_TRACE(absl::StrCat("length ", length));
    const Tokens alone{.ids = {packed.ids.begin() + begin, packed.ids.begin() + begin + length},
                       .cu_seqlens = {0, length}};
    const std::span<const double> want(&together[begin * config.width], length * config.width);
    EXPECT_LE(RowDifference(HiddenOf(tiny, alone), want), 1e-12);
  }
}

INSTANTIATE_TEST_SUITE_P(Mixers, MixerSuite, testing::ValuesIn(AllMixerCases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace lt2
