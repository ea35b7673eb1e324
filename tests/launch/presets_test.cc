// The papers' sizes: every shape with every mixer loads, and has as many parameters as the papers'
// formulas say, written here a second time.
#include "launch/presets.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "launch/environment.h"
#include "launch/run_config.h"
#include "model/language_model.h"
#include "model/mixers/registry.h"

namespace lt2 {
namespace {

int64_t Parameters(const ModelConfig& model) { return LanguageModel(model).params().elements(); }

int64_t ParametersOf(const std::string& preset, const std::vector<std::string>& sets = {}) {
  const absl::StatusOr<RunConfig> config = LoadRunConfig(preset, sets);
  EXPECT_TRUE(config.ok()) << config.status();
  return config.ok() ? Parameters(config->model) : 0;
}

// What a mixer has at width d, from the papers: H heads of K keys and V values (all heads: HK, HV).
struct Layer {
  int64_t d, heads, kv_heads, head_dim;  // of softmax attention
  bool student;                          // one of a SmolLM2's students, not of LT2
};
int64_t Linear(const Layer& l) {
  const int64_t k = l.d / l.heads;
  return 4 * l.d * l.d + 4 * (k * k + k) + (l.student ? 0 : k);
}
int64_t RetNet(const Layer& l) {
  return l.student ? 5 * l.d * l.d + l.d / 8 : 8 * l.d * l.d + 2 * l.d / l.heads;
}
int64_t Gla(const Layer& l) {
  const int64_t keys = l.student ? l.d : l.d / 2, heads = l.student ? 4 : l.heads;
  return 2 * l.d * keys + 3 * l.d * l.d + 16 * l.d + 17 * keys + l.d / heads;
}
int64_t DeltaNet(const Layer& l) {
  const int64_t heads = l.student ? 16 : l.heads;
  return 4 * l.d * l.d + l.d * heads + 12 * l.d + l.d / heads;
}
int64_t Gdn(const Layer& l) {
  const int64_t k = l.student ? 64 : 3 * l.d / 4 / l.heads, v = l.student ? 64 : 2 * k;
  const int64_t keys = l.heads * k, values = l.heads * v;
  return 2 * l.d * keys + 3 * l.d * values + 2 * l.d * l.heads + 4 * (2 * keys + values) +
         2 * l.heads + v;
}
int64_t Kda(const Layer& l) {
  const int64_t v = l.d / l.heads;
  return 4 * l.d * l.d + 4 * l.d * v + l.d * l.heads + 14 * l.d + l.heads + v;
}
int64_t Mamba2(const Layer& l) {
  const int64_t n = 64;
  return 6 * l.d * l.d + l.d * (2 * n + l.heads) + 5 * (2 * l.d + 2 * n) + 3 * l.heads + 2 * l.d;
}
int64_t Mlstm(const Layer& l) {
  return (l.student ? 5 : 4) * l.d * l.d + 2 * l.d * l.heads + 2 * l.heads + l.d;
}
int64_t Hgrn2(const Layer& l) { return 4 * l.d * l.d + l.d; }
int64_t Softmax(const Layer& l) { return 2 * l.d * l.head_dim * (l.heads + l.kv_heads); }
int64_t Nsa(const Layer& l) {
  const bool regrouped = l.kv_heads < l.heads;  // into 16 heads over the whole width
  const int64_t heads = regrouped ? 16 : l.heads, head_dim = l.d / heads;
  return 2 * l.d * head_dim * (heads + heads / 16) + 3 * l.d * heads;
}
int64_t Dsa(const Layer& l) {
  const int64_t value = 4 * l.head_dim, latent = value + l.head_dim / 2, index = l.head_dim / 2;
  return l.d * (l.heads * (latent + value) + latent) + l.d * (l.heads + 1) * index + 2 * index +
         l.d * l.heads;
}
int64_t Gated(const Layer& l) { return Softmax(l) + l.d * l.head_dim * l.heads; }

struct ModelShape {
  const char* name;
  int64_t d, layers, loops, heads, kv_heads, ffn, vocab;  // loops = 0: no residual over loops
};
const ModelShape kShapes[] = {{"lt2-0.6b", 1024, 25, 4, 16, 16, 2816, 128256},
                              {"lt2-1.3b", 2048, 21, 4, 16, 16, 5632, 128256},
                              {"smollm2-140m", 576, 30, 0, 9, 3, 1536, 49152},
                              {"smollm2-360m", 960, 32, 0, 15, 5, 2560, 49152},
                              {"smollm2-1.7b", 2048, 24, 0, 32, 32, 8192, 49152}};

using Formula = int64_t (*)(const Layer&);
const std::map<std::string, Formula> kFormulas = {
    {"full", Softmax}, {"window", Softmax},    {"linear", Linear}, {"retnet", RetNet},
    {"gla", Gla},      {"deltanet", DeltaNet}, {"gdn", Gdn},       {"kda", Kda},
    {"mlstm", Mlstm},  {"mamba2", Mamba2},     {"hgrn2", Hgrn2},   {"nsa", Nsa},
    {"dsa", Dsa}};

int64_t Expected(const ModelShape& s, const std::string& mixers) {
  const Layer layer{s.d, s.heads, s.kv_heads, s.d / s.heads, s.loops == 0};
  int64_t sum = s.vocab * s.d + s.d + s.loops * s.d + s.layers * (3 * s.d * s.ffn + 2 * s.d);
  for (int64_t i = 0; i < s.layers; ++i) {
    sum += mixers == "full-gdn" ? (i % 5 == 4 ? Gated(layer) : Gdn(layer))
                                : kFormulas.at(mixers)(layer);
  }
  return sum;
}

TEST(Presets, EveryShapeHasEveryMixerAndTheFormulasParameters) {
  std::vector<std::string> names;
  const absl::StatusOr<std::vector<Preset>> presets = ListPresets();
  ASSERT_TRUE(presets.ok()) << presets.status();
  for (const Preset& preset : *presets) names.push_back(preset.name);
  for (const ModelShape& shape : kShapes) {
    for (const std::string& kind : MixerKinds()) {
      const std::string name = std::string(shape.name) + "-" + kind;
      SCOPED_TRACE(name);
      EXPECT_EQ(std::count(names.begin(), names.end(), name), 1)
          << "a line of launch/presets/mixers.toml is missing";
      if (kFormulas.count(kind) > 0) {
        EXPECT_EQ(ParametersOf(name), Expected(shape, kind));
      } else {
        ADD_FAILURE() << kind << " has no formula here";
      }
    }
    const std::string hybrid = std::string(shape.name) + "-full-gdn";
    EXPECT_EQ(ParametersOf(hybrid), Expected(shape, "full-gdn")) << hybrid;
  }
}

// The students of SmolLM2 1.7B by gated linear attention have 4 heads of 512 key channels.
TEST(Presets, GpusTakeAllButOne) {
  const absl::StatusOr<std::vector<Preset>> presets = ListPresets();
  ASSERT_TRUE(presets.ok()) << presets.status();
  for (const Preset& preset : *presets) {
    const absl::StatusOr<RunConfig> config = LoadRunConfig(preset.name, {});
    ASSERT_TRUE(config.ok()) << config.status();
    const absl::Status status = CheckSizesOf(*config, {}, Backend::kCuda);
    EXPECT_EQ(status.ok(), preset.name != "smollm2-1.7b-gla") << preset.name << ": " << status;
  }
}

// The totals that were computed for the papers' models: 2605.20670 in millions to one digit, the
// configurations of the SmolLM2 exactly.
TEST(Presets, TotalsAreThePapers) {
  const auto millions = [](int64_t count) { return static_cast<double>(count) / 1e6; };
  const std::string gate = "model.attention_gate=true", plain = "model.attention_gate=false";
  EXPECT_NEAR(millions(ParametersOf("lt2-1.3b-full")), 1341.7, 0.05);
  EXPECT_NEAR(millions(ParametersOf("lt2-1.3b-full", {gate})), 1429.8, 0.05);
  EXPECT_NEAR(millions(ParametersOf("lt2-1.3b-gdn")), 1519.8, 0.05);
  EXPECT_NEAR(millions(ParametersOf("lt2-1.3b-full-gdn", {plain})), 1485.9, 0.05);
  EXPECT_NEAR(millions(ParametersOf("lt2-1.3b-full-gdn")), 1502.7, 0.05);
  EXPECT_NEAR(millions(ParametersOf("lt2-0.6b-full")), 452.5, 0.05);
  EXPECT_NEAR(millions(ParametersOf("lt2-0.6b-full-gdn")), 500.6, 0.05);
  EXPECT_NEAR(millions(ParametersOf("lt2-0.6b-gdn", {"model.layers=21", "model.heads=8"})), 445.8,
              0.05);
  EXPECT_EQ(ParametersOf("smollm2-140m-full"), 134515008);
  EXPECT_EQ(ParametersOf("smollm2-360m-full"), 361821120);
  EXPECT_EQ(ParametersOf("smollm2-1.7b-full"), 1711376384);
}

// A layer of each at width 2048, in the shapes that flash-linear-attention takes by default.
TEST(Presets, MixersOfWidth2048) {
  struct Case {
    const char* preset;
    std::vector<std::string> sets;
    int64_t parameters;
  };
  const Case cases[] = {
      {"full", {}, 16777216},
      {"full", {"model.attention_gate=true"}, 20971520},
      {"linear", {"model.linear.heads=8"}, 17040640},
      {"retnet", {"model.retnet.heads=8"}, 33554944},
      {"gla", {"model.gla.heads=4"}, 16827904},
      {"deltanet", {}, 16834688},
      {"gdn", {"model.gdn.heads=6", "model.gdn.head_dim=256"}, 25215500},
      {"kda", {}, 17887376},
      {"mamba2", {"model.mamba2.heads=64", "model.mamba2.state_dim=128"}, 25847232},
      {"mlstm", {"model.mlstm.heads=8"}, 16812048},
      {"hgrn2", {}, 16779264},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.preset);
    const auto with_layers = [&](const char* layers) {
      std::vector<std::string> sets = c.sets;
      sets.push_back(std::string("model.layers=") + layers);
      return ParametersOf(std::string("lt2-1.3b-") + c.preset, sets);
    };
    const int64_t ffn_and_norms = 3 * 2048 * 5632 + 2 * 2048;
    EXPECT_EQ(with_layers("2") - with_layers("1") - ffn_and_norms, c.parameters);
  }
}

TEST(Presets, AShapeOverlaysWhatItIsLike) {
  const RunConfig big = *LoadRunConfig("lt2-1.3b-window", {});
  const RunConfig small = *LoadRunConfig("lt2-0.6b-window", {});
  EXPECT_EQ(small.run.name, "lt2-0.6b-window");
  EXPECT_EQ(small.optimizer.lr, 1.5e-4);
  EXPECT_EQ(small.batch.tokens, big.batch.tokens);
  EXPECT_EQ(small.model.loops, 4);
  EXPECT_NE(small.ToToml().find("window = 256"), std::string::npos);
  EXPECT_NE(big.ToToml().find("window = 2048"), std::string::npos);
  // Options of mixers that the model does not have are not part of it.
  EXPECT_EQ(LoadRunConfig("lt2-1.3b-gdn", {})->ToToml().find("window"), std::string::npos);
}

// The contract's example.
TEST(Presets, AModelTakesAComposedPreset) {
  const absl::StatusOr<RunConfig> config = ParseRunConfig(R"([model]
preset = "lt2-1.3b-full-gdn"
layers = 10
[data]
train = [{ path = "data/samples/tinyshakespeare.txt" }]
[batch]
tokens = 4096
[schedule]
total = "10 steps"
)",
                                                          "mine.toml");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->model.mixers, (std::vector<std::string>{"gdn", "gdn", "gdn", "gdn", "full"}));
  EXPECT_EQ(config->model.layers, 10);
  EXPECT_EQ(config->model.ffn, 5632);
  EXPECT_TRUE(config->model.attention_gate);
}

TEST(Presets, TheNearestNameIsTold) {
  const absl::Status status = LoadRunConfig("lt2-1.3b-deltnet", {}).status();
  EXPECT_EQ(std::string(status.message()),
            "lt2-1.3b-deltnet: no such file and no preset of that name; did you mean "
            "'lt2-1.3b-deltanet'?");
}

}  // namespace
}  // namespace lt2
