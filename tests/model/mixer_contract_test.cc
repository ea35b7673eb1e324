// The declarations of every mixer: initial values, parameters and their uses, states, FLOPs. The
// values that it computes are mixer_suite_test.cc's business.
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "absl/strings/str_cat.h"
#include "core/allocator.h"
#include "kernels/init.h"
#include "model/mixers/registry.h"
#include "tests/model/mixer_cases.h"
#include "tests/support/tiny_model.h"

namespace lt2 {
namespace {

class MixerContract : public testing::TestWithParam<MixerCase> {
 protected:
  ModelConfig Config(const std::vector<std::string>& more = {}) const {
    return ConfigOf(GetParam(), more);
  }
};

TEST_P(MixerContract, InitialValuesGiveAFiniteLossAndGradients) {
  const ModelConfig config = Config();
  const TinyModel::Tokens tokens = RandomTokens(config, 130, 2, 95);
  TinyModel tiny(config, DType::kF32, Backend::kCpu);
  for (Param* param : tiny.model.params().all()) {
    InitTensor(param->spec, Box::Whole(param->spec.shape), 95, param->value);
  }
  const TinyModel::Result result = tiny.ForwardBackward(tokens);
  const auto counted = std::ranges::count_if(tokens.targets, [](int32_t y) { return y >= 0; });
  EXPECT_NEAR(result.loss / static_cast<double>(counted), std::log(config.vocab), 1);
  for (const auto& [name, grad] : result.grads) {
    EXPECT_TRUE(std::ranges::all_of(grad, [](double g) { return std::isfinite(g); })) << name;
  }
}

// Exact algorithms compute more than the model's FLOPs, never less; each projection counts once a
// loop.
TEST_P(MixerContract, ModelFlopsLieBetweenTheProjectionsAndADryRun) {
  constexpr int64_t kTokens = 256;
  const ModelConfig config = Config();
  const MetaMeter meter;
  TinyModel tiny(config, DType::kF32, Backend::kMeta);
  const Documents row = Documents::Rows(1, kTokens, tiny.stream.device);
  const Tensor ids = Tensor::Empty({kTokens}, DType::kI32, tiny.stream.device);
  tiny.model.Logits(tiny.stream, tiny.model.Hidden(tiny.stream, ids, row));
  const double model = tiny.model.FlopsPerToken(kTokens) * static_cast<double>(kTokens);
  EXPECT_LE(model, meter.flops());
  double projections = 0;
  for (const Param* param : tiny.model.params().all()) {
    const bool matrix =
        param->spec.name.find("proj") != std::string::npos && param->spec.name.ends_with("weight");
    if (matrix) projections += 2 * static_cast<double>(config.loops * param->spec.shape.size());
  }
  EXPECT_GE(model, projections * static_cast<double>(kTokens));
}

// Each entry of the state is read by Step, belongs to one sequence, and is written.
TEST_P(MixerContract, StepUsesTheStateThatStateSpecDeclares) {
  constexpr int64_t kSequences = 2, kCapacity = 40, kPrompt = 30;
  const ModelConfig config = Config({"loops=1"});
  const uint64_t seed = 101;
  TinyModel tiny(config, DType::kF64, Backend::kCpu, seed);
  const TinyModel::Tokens tokens = RandomTokens(config, kSequences * kPrompt, 1, seed);
  const Device device = tiny.stream.device;
  const Documents rows = Documents::Rows(kSequences, kPrompt, device);
  std::vector<MixerState> states =
      tiny.model.MakeStates(kSequences, kCapacity, DType::kF64, device);
  ASSERT_EQ(static_cast<int64_t>(states.size()), config.layers);
  tiny.model.Hidden(tiny.stream, Tensor::FromHost(tokens.ids, {rows.tokens()}, device), rows,
                    {.states = &states});
  const auto step = [&](std::vector<MixerState> from) {
    for (MixerState& state : from) {
      for (Tensor& tensor : state) tensor = tensor.Clone();
    }
    const std::vector<int32_t> position(kSequences, kPrompt), length(kSequences, kPrompt + 1);
    const StepContext context{.positions_B = Tensor::FromHost(position, {kSequences}, device),
                              .lengths_B = Tensor::FromHost(length, {kSequences}, device)};
    const std::vector<int32_t> ids = {1, 2};
    return tiny.model.Step(tiny.stream, Tensor::FromHost(ids, {kSequences}, device), context, from)
        .ToDoubles();
  };
  const std::vector<double> plain = step(states);
  const auto second = [&](const std::vector<double>& logits) {
    return logits.begin() + config.vocab;
  };
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  for (size_t i = 0; i < states.size(); ++i) {
    for (size_t j = 0; j < states[i].size(); ++j) {
      SCOPED_TRACE(absl::StrCat("layer ", i, " entry ", j, " seed ", seed));
      ASSERT_EQ(states[i][j].dim(0), kSequences);
      const std::vector<double> held = states[i][j].ToDoubles();
      EXPECT_TRUE(std::ranges::any_of(held, [](double x) { return x != 0; })) << "never written";
      if (states[i][j].dtype() != DType::kF64) continue;
      std::vector<MixerState> disturbed = states;
      disturbed[i][j] = states[i][j].Clone();
      for (double& x : disturbed[i][j].Rows(0, 1).span<double>()) x += 3 * normal(random);
      const std::vector<double> got = step(disturbed);
      EXPECT_FALSE(std::equal(got.begin(), second(got), plain.begin())) << "not read";
      EXPECT_TRUE(std::equal(second(got), got.end(), second(plain))) << "another sequence reads it";
    }
  }
}

TEST_P(MixerContract, NamesAreUniqueAndEveryUseArrives) {
  for (const int64_t loops : {1, 2}) {
    const ModelConfig config = Config({absl::StrCat("loops=", loops)});
    TinyModel tiny(config, DType::kF32, Backend::kCpu);
    const std::vector<Param*> params = tiny.model.params().all();
    const std::vector<int> uses = tiny.model.UsesPerMicroBatch();
    std::set<std::string> names;
    for (size_t i = 0; i < params.size(); ++i) {
      const std::string& name = params[i]->spec.name;
      EXPECT_TRUE(names.insert(name).second) << name << " twice";
      if (name.starts_with("layers.")) {
        EXPECT_EQ(uses[i], loops) << name;
      }
    }
    // Dies where a use is missing or there is one too many.
    tiny.ForwardBackward(RandomTokens(config, 40, 2, 111));
    for (const Param* param : params) EXPECT_EQ(param->outstanding(), 0) << param->spec.name;
  }
}

TEST_P(MixerContract, EveryParameterHasOneForeignName) {
  const ModelConfig config = Config();
  for (size_t layer = 0; layer < GetParam().mixers.size(); ++layer) {
    std::set<std::string> known;
    for (const ForeignTable::Name& name : ForeignNamesOf(GetParam().mixers[layer]).params) {
      EXPECT_TRUE(known.insert(name.ours).second) << name.ours << " twice";
    }
    const std::string& kind = GetParam().mixers[layer];
    const std::string prefix = absl::StrCat("layers.", layer, ".mixer.");
    LanguageModel model(config);
    for (const Param* param : model.params().all()) {
      const std::string& name = param->spec.name;
      if (name.starts_with(kind + ".")) {  // all layers of the kind share it
        EXPECT_TRUE(known.contains(name)) << name << " cannot be imported";
      }
      if (!name.starts_with(prefix)) continue;
      EXPECT_TRUE(known.contains(name.substr(prefix.size()))) << name << " cannot be imported";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Mixers, MixerContract, testing::ValuesIn(AllMixerCases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace lt2
