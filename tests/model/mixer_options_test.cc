// What the options of the recurrent mixers mean, and which are mistakes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/hash.h"
#include "core/philox.h"
#include "model/mixers/registry.h"
#include "tests/support/tiny_model.h"

namespace lt2 {
namespace {

ModelConfig ConfigWith(const std::string& kind, const std::string& options) {
  ModelConfig config;
  config.width = 32, config.heads = 4;
  config.mixer_options[kind] = *ConfigTable::Parse(options, "test");
  return config;
}

constexpr Device kDevice{Backend::kCpu};

std::vector<double> RandomValues(const std::string& name, int64_t count) {
  std::vector<double> values;
  for (int64_t i = 0; i < count; ++i) {
    values.push_back(OpenUniform(Philox(Hash64(name), i)[0]) - 0.5);
  }
  return values;
}

void Bind(Param& param, const std::vector<double>& values) {
  param.BindValue(Tensor::FromHost(values, param.spec.shape, DType::kF64, kDevice));
}

// A layer of the kind whose parameters are random by their names.
struct Layer {
  Layer(const std::string& kind, const ModelConfig& config)
      : mixer(MakeMixer(kind, config, {.scope = ParamScope(params), .root = ParamScope(params)})) {
    for (Param* param : params.all()) {
      Bind(*param, RandomValues(param->spec.name, param->spec.shape.size()));
    }
  }
  std::vector<double> Output() {
    constexpr int64_t kTokens = 70;
    Stream stream{.device = kDevice};
    Tape tape(stream);
    tape.set_recording(false);
    const Documents row = Documents::Rows(1, kTokens, kDevice);
    const Tensor x =
        Tensor::FromHost(RandomValues("x", kTokens * 32), {kTokens, 32}, DType::kF64, kDevice);
    return mixer->Forward(tape, tape.Input(x), {.documents = row}).y_ND.value.ToDoubles();
  }
  ParamSet params;
  std::unique_ptr<Mixer> mixer;
};

// Two heads of keys and values for four of queries are four whose second and fourth repeat the
// first and third.
TEST(MixerOptions, GroupedHeadsAreRepeatedHeads) {
  for (const std::string kind : {"linear", "retnet", "gla", "mlstm"}) {
    SCOPED_TRACE(kind);
    const std::string more = kind == "mlstm" ? "" : "\nconv = true";
    Layer grouped(kind, ConfigWith(kind, "kv_heads = 2" + more));
    Layer plain(kind, ConfigWith(kind, "kv_heads = 4" + more));
    int repeated = 0;
    for (Param* param : plain.params.all()) {
      const Param* few = grouped.params.Find(param->spec.name);
      ASSERT_NE(few, nullptr) << param->spec.name;
      if (few->spec.shape == param->spec.shape) continue;
      const std::vector<double> values = few->value.ToDoubles();
      const auto half = values.begin() + static_cast<int64_t>(values.size()) / 2;
      std::vector<double> twice;
      for (const auto& [begin, end] : {std::pair(values.begin(), half), {half, values.end()}}) {
        twice.insert(twice.end(), begin, end);
        twice.insert(twice.end(), begin, end);
      }
      Bind(*param, twice);
      ++repeated;
    }
    EXPECT_GE(repeated, 2);
    EXPECT_LE(RelativeDifference(grouped.Output(), plain.Output()), 1e-13);
  }
}

TEST(MixerOptions, RetNetTurnsByItsOwnAngles) {
  const std::vector<double> plain = Layer("retnet", ConfigWith("retnet", "")).Output();
  ModelConfig turned = ConfigWith("retnet", "");
  turned.rope_theta = 50, turned.rope_interleaved = true;
  EXPECT_EQ(Layer("retnet", turned).Output(), plain);
  for (const std::string option : {"rope_theta = 50", "rope_style = 'interleaved'"}) {
    EXPECT_NE(Layer("retnet", ConfigWith("retnet", option)).Output(), plain) << option;
  }
}

struct Mistake {
  const char *kind, *options, *message;
};

TEST(MixerOptions, MistakesSayWhatIsAllowed) {
  const char* const kWidth = "must be an integer from 1 to 4096";
  for (const Mistake& mistake : std::vector<Mistake>{
           {"mamba2", "expand = 1e12", kWidth},
           {"mamba2", "expand = -2.0", "must be a finite number above 0"},
           {"mamba2", "expand = 0.3", kWidth},
           {"mamba2", "state_dim = 0", "must be from 1 to 4096"},
           {"mamba2", "groups = 3", "3 does not divide heads 4"},
           {"mamba2", "heads = 1000000000000", "must be from 1 to 4096"},
           {"linear", "expand_k = 1e12", kWidth},
           {"linear", "heads = 0", "must be from 1 to 4096"},
           {"gla", "kv_heads = 3", "3 does not divide heads 4"},
           {"gla", "expand_v = 0.3", kWidth},
           {"mlstm", "kv_heads = 8", "8 does not divide heads 4"},
           {"retnet", "expand_k = 0.125", "the width must be even"},
           {"retnet", "rope_theta = 0", "must be a finite number above 0"},
           {"deltanet", "expand_k = 1e12", kWidth},
           {"deltanet", "v_heads = 6", "6 is not a multiple of heads 4"},
           {"gdn", "expand_v = 0.3", kWidth},
           {"hgrn2", "expand_ratio = 0", "must be from 1 to 4096"},
       }) {
    SCOPED_TRACE(testing::Message() << mistake.kind << ": " << mistake.options);
    const ModelConfig config = ConfigWith(mistake.kind, mistake.options);
    const ConfigTable& table = config.mixer_options.at(mistake.kind);
    CheckMixerOptions(mistake.kind, config, table);
    EXPECT_THAT(std::string(table.Finish().message()), testing::HasSubstr(mistake.message));
  }
}

}  // namespace
}  // namespace lt2
