#include "launch/import_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "checkpoints/reader.h"
#include "checkpoints/verify.h"
#include "launch/foreign_config.h"
#include "launch/foreign_names.h"
#include "model/mixers/registry.h"
#include "tests/checkpoints/safetensors_sample.h"
#include "tests/model/mixer_cases.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tiny_model.h"

namespace lt2 {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

std::string BytesOf(const Tensor& tensor) {
  return std::string(static_cast<const char*>(tensor.raw()), tensor.bytes());
}

// The values of a parameter of the checkpoint at `path`.
std::string Imported(const std::string& path, const std::string& name, const Shape& shape) {
  auto checkpoint = Checkpoint::Open(path);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
  TensorPiece piece{"param", name, shape, Box::Whole(shape), Tensor::Zeros(shape, DType::kF32, {})};
  const absl::Status loaded = checkpoint->Load({&piece, 1});
  EXPECT_TRUE(loaded.ok()) << loaded;
  return BytesOf(piece.tensor);
}

class ImportTest : public testing::Test {
 protected:
  std::string Path(const std::string& name) const { return JoinPath(directory_.path(), name); }
  std::string Write(const std::string& name, const std::string& text) const {
    EXPECT_TRUE(FileSystem::Get().WriteFile(Path(name), text).ok());
    return Path(name);
  }
  std::string WriteModel(const std::vector<SampleSafeTensor>& tensors) const {
    return Write("model.safetensors", SafetensorsBytes(tensors));
  }
  absl::StatusOr<std::vector<ImportedParam>> Match(const ModelConfig& config,
                                                   const std::vector<SampleSafeTensor>& tensors) {
    model_ = SafetensorsModel::Open(WriteModel(tensors));
    EXPECT_TRUE(model_.ok()) << model_.status();
    return MatchParams(config, *model_);
  }
  std::string Refusal(const ModelConfig& config, const std::vector<SampleSafeTensor>& tensors) {
    const absl::Status status = Match(config, tensors).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  }
  // What Match matched, as a checkpoint of that name.
  std::string Import(const std::string& name, const std::vector<ImportedParam>& params) {
    const auto bytes = ImportParams(*model_, params, {}, Path(name));
    EXPECT_TRUE(bytes.ok()) << bytes.status();
    return Path(name);
  }
  TemporaryDirectory directory_;
  absl::StatusOr<SafetensorsModel> model_;
};

SampleSafeTensor Random(const std::string& name, const Shape& shape) {
  return {name, "F32", shape, RandomBytes(4 * shape.size(), Hash64(name))};
}

// Qwen3's names, a tensor a line beside ours.
struct Pair {
  std::string theirs, ours;
  Shape shape;
};
std::vector<Pair> QwenModel() {
  std::vector<Pair> pairs = {{"model.embed_tokens.weight", "embed.weight", {11, 8}},
                             {"model.norm.weight", "norm.weight", {8}},
                             {"lm_head.weight", "head.weight", {11, 8}}};
  for (int i = 0; i < 2; ++i) {
    const std::string theirs = StrCat("model.layers.", i, "."), ours = StrCat("layers.", i, ".");
    for (const Pair& pair :
         std::vector<Pair>{{"input_layernorm.weight", "norm1.weight", {8}},
                           {"self_attn.q_proj.weight", "mixer.q_proj.weight", {8, 8}},
                           {"self_attn.k_proj.weight", "mixer.k_proj.weight", {4, 8}},
                           {"self_attn.v_proj.weight", "mixer.v_proj.weight", {4, 8}},
                           {"self_attn.o_proj.weight", "mixer.o_proj.weight", {8, 8}},
                           {"self_attn.q_norm.weight", "mixer.q_norm.weight", {4}},
                           {"self_attn.k_norm.weight", "mixer.k_norm.weight", {4}},
                           {"post_attention_layernorm.weight", "norm2.weight", {8}},
                           {"mlp.gate_proj.weight", "ffn.gate.weight", {6, 8}},
                           {"mlp.up_proj.weight", "ffn.up.weight", {6, 8}},
                           {"mlp.down_proj.weight", "ffn.down.weight", {8, 6}}}) {
      pairs.push_back({theirs + pair.theirs, ours + pair.ours, pair.shape});
    }
  }
  return pairs;
}
ModelConfig QwenConfig(bool qk_norm = true) {
  ModelConfig config;
  config.width = 8;
  config.layers = 2;
  config.heads = 2;
  config.kv_heads = 1;
  config.head_dim = 4;
  config.ffn = 6;
  config.vocab = 11;
  config.tie_embeddings = false;
  config.loop_residual = false;
  config.mixer_options["full"].Set("qk_norm", qk_norm);
  return config;
}
std::vector<SampleSafeTensor> TensorsOf(const std::vector<Pair>& pairs) {
  std::vector<SampleSafeTensor> tensors;
  for (const Pair& pair : pairs) tensors.push_back(Random(pair.theirs, pair.shape));
  return tensors;
}

TEST_F(ImportTest, AFullAttentionModelOfHuggingFace) {
  const auto tensors = TensorsOf(QwenModel());
  const auto params = Match(QwenConfig(), tensors);
  ASSERT_TRUE(params.ok()) << params.status();
  const std::string path = Import("imported", *params);
  const std::vector<Pair> pairs = QwenModel();
  EXPECT_EQ(params->size(), pairs.size());
  for (size_t i = 0; i < pairs.size(); ++i) {
    EXPECT_EQ(Imported(path, pairs[i].ours, pairs[i].shape), tensors[i].bytes) << pairs[i].ours;
  }
}

// A model's tensors as another program has them: by the import tables, several of ours joined, the
// filters of convolutions [channels, 1, taps].
std::vector<SampleSafeTensor> ForeignTensors(LanguageModel& model, bool fla) {
  const std::vector<std::string> kinds = *LayerKinds(model.config());
  std::vector<SampleSafeTensor> tensors;
  const auto add = [&](const std::string& ours, const std::string& theirs) {
    const Param* param = model.params().Find(ours);
    if (param == nullptr) return;
    Shape shape = param->spec.shape;
    if (ours.ends_with("conv1d.weight")) shape = {shape[0], 1, shape[1]};
    for (SampleSafeTensor& joined : tensors) {
      if (joined.name != theirs) continue;
      if (ours.find("lower_bounds") != std::string::npos) return;  // of all layers
      joined.shape[0] += shape[0];
      joined.bytes += BytesOf(param->value);
      return;
    }
    tensors.push_back({theirs, "F32", shape, BytesOf(param->value)});
  };
  add("embed.weight", fla ? "model.embeddings.weight" : "model.embed_tokens.weight");
  add("norm.weight", "model.norm.weight");
  add("head.weight", "lm_head.weight");
  for (size_t i = 0; i < kinds.size(); ++i) {
    const std::string ours = StrCat("layers.", i, "."), theirs = "model." + ours;
    add(ours + "norm1.weight", theirs + (fla ? "attn_norm.weight" : "input_layernorm.weight"));
    add(ours + "norm2.weight",
        theirs + (fla ? "mlp_norm" : "post_attention_layernorm") + ".weight");
    for (const char* part : {"gate", "up", "down"}) {
      add(StrCat(ours, "ffn.", part, ".weight"), StrCat(theirs, "mlp.", part, "_proj.weight"));
    }
    for (const ForeignTable::Name& name : ForeignNamesOf(kinds[i]).params) {
      add(StrCat(ours, "mixer.", name.ours),
          StrCat(theirs, fla ? "attn." : "self_attn.", name.theirs));
      add(name.ours, "model." + name.theirs);
    }
  }
  return tensors;
}

class ImportOfMixers : public ImportTest, public testing::WithParamInterface<MixerCase> {};

TEST_P(ImportOfMixers, EveryParameterGetsItsValues) {
  for (const bool fla : {true, false}) {
    SCOPED_TRACE(fla ? "flash-linear-attention's names" : "Llama's names");
    ModelConfig config = ConfigOf(GetParam());
    TinyModel made(config, DType::kF32, Backend::kCpu);
    LanguageModel& model = made.model;
    const auto tensors = ForeignTensors(model, fla);
    if (config.rope_interleaved) {
      EXPECT_THAT(Refusal(config, tensors), HasSubstr("rope_style = \"half\""));
      config.rope_interleaved = false;
    }
    const auto params = Match(config, tensors);
    ASSERT_TRUE(params.ok()) << params.status();
    const std::string path = Import(fla ? "fla" : "llama", *params);
    for (const Param* param : model.params().all()) {
      const std::string& name = param->spec.name;
      std::string expected = BytesOf(param->value);
      if (name == "loop.residual") expected.assign(expected.size(), '\0');  // not over there
      EXPECT_EQ(Imported(path, name, param->spec.shape), expected) << name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Mixers, ImportOfMixers, testing::ValuesIn(AllMixerCases()),
                         [](const auto& info) { return info.param.name; });

TEST_F(ImportTest, AllThatDoesNotFitIsToldTogether) {
  std::vector<Pair> pairs = QwenModel();
  pairs[1].theirs = "model.norn.weight";                   // another name
  pairs[4].shape = {8, 7};                                 // layer 0: q_proj
  pairs[23].theirs = "model.layers.2.mlp.up_proj.weight";  // another layer
  pairs.push_back({"model.layers.0.self_attn.q_proj.bias", "", {8}});
  pairs.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", "", {2}});  // computed
  const std::string told = Refusal(QwenConfig(), TensorsOf(pairs));
  EXPECT_THAT(told,
              HasSubstr("missing: 2 tensors\n    model.norm.weight, our norm.weight; did you "
                        "mean model.norn.weight?\n"
                        "    model.layers.1.mlp.up_proj.weight, our layers.1.ffn.up.weight\n"));
  EXPECT_THAT(told, HasSubstr("left over: 3 tensors"));
  EXPECT_THAT(told, HasSubstr("model.layers.0.self_attn.q_proj.bias"));
  EXPECT_THAT(told, HasSubstr("model.norn.weight; did you mean model.norm.weight?"));
  EXPECT_THAT(told,
              HasSubstr("of another shape: 1 tensor\n    model.layers.0.self_attn.q_proj.weight "
                        "[8, 7] for our layers.0.mixer.q_proj.weight [8, 8]"));
  EXPECT_THAT(told, Not(HasSubstr("inv_freq")));
  EXPECT_THAT(told, HasSubstr("    model.layers.2.mlp.up_proj.weight\n"));
}

TEST_F(ImportTest, AHeadOfATiedModelIsLeftOver) {
  ModelConfig config = QwenConfig();
  config.tie_embeddings = true;
  EXPECT_THAT(Refusal(config, TensorsOf(QwenModel())),
              HasSubstr("lm_head.weight; set model.tie_embeddings = false"));
  config = QwenConfig(/*qk_norm=*/false);
  EXPECT_THAT(Refusal(config, TensorsOf(QwenModel())), HasSubstr("left over: 4 tensors"));
}

TEST_F(ImportTest, OurNamesWantEveryTensor) {
  std::vector<SampleSafeTensor> tensors;
  for (const Pair& pair : QwenModel()) tensors.push_back(Random(pair.ours, pair.shape));
  ModelConfig config = QwenConfig();
  EXPECT_TRUE(Match(config, tensors).ok());
  config.rope_interleaved = true;  // they are in whatever way the run had them
  EXPECT_TRUE(Match(config, tensors).ok());
  config.loop_residual = true;
  const std::string told = Refusal(config, tensors);
  EXPECT_THAT(told, HasSubstr("missing: 1 tensor\n    loop.residual"));
}

constexpr char kConfig[] =
    "[model]\nwidth = 8\nlayers = 2\nloops = 1\nheads = 2\nkv_heads = 1\nffn = 6\nvocab = 11\n"
    "tie_embeddings = false\nloop_residual = false\n[model.full]\nqk_norm = true\n"
    "[data]\ntrain = [{ path = \"none.txt\" }]\nsequence = 8\n[batch]\ntokens = 8\n"
    "[schedule]\ntotal = \"1 steps\"\n";

TEST_F(ImportTest, AConfigurationIsWantedAndKept) {
  WriteModel(TensorsOf(QwenModel()));
  const absl::Status without = ImportModel({.path = directory_.path()}, Path("out")).status();
  EXPECT_TRUE(absl::IsInvalidArgument(without)) << without;
  EXPECT_THAT(std::string(without.message()), HasSubstr("--config"));

  const std::string config = Write("config.toml", kConfig);
  Write("config.json", "{\"rope_theta\": 1000000.0, \"hidden_size\": 8}");  // a warning
  const auto imported = ImportModel(
      {.path = directory_.path(), .config = config, .sets = {"run.seed=7"}}, Path("out"));
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_EQ(imported->tensors.size(), QwenModel().size());
  EXPECT_THAT(imported->zeros, ElementsAre());
  const auto report = Verify(Path("out"));
  ASSERT_TRUE(report.ok() && report->sound()) << report->status();
  EXPECT_EQ(report->manifest.info.seed, 7u);
  EXPECT_EQ(report->manifest.info.tokenizer_hash, "");
  EXPECT_THAT(report->manifest.info.config, HasSubstr("vocab = 11"));
  EXPECT_TRUE(absl::IsInvalidArgument(
      ImportModel({.path = directory_.path(), .config = config}, Path("out")).status()));
}

TEST_F(ImportTest, CountsOfTheRunAreNotTrusted) {
  const std::string path = Write(
      "m.safetensors",
      SafetensorsBytes(TensorsOf(QwenModel()), {{"lt2.config", kConfig}, {"lt2.step", "-1"}}));
  const absl::Status status = ImportModel({.path = path}, Path("out")).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("lt2.step is '-1'"));
}

TEST(ForeignConfig, SaysWhatShapesDoNot) {
  const auto lines = [](const char* json) {
    return DifferencesFrom(json, "config.json", QwenConfig()).value();
  };
  EXPECT_THAT(lines("{}"), ElementsAre());
  EXPECT_THAT(lines(R"({"rope_theta": 10000, "rms_norm_eps": 1e-06, "num_attention_heads": 2,
                        "head_dim": null, "tie_word_embeddings": false, "rope_scaling": null,
                        "hidden_act": "silu"})"),
              ElementsAre());
  EXPECT_THAT(lines(R"({"head_dim": 64})"), ElementsAre());  // not of attention
  EXPECT_THAT(lines(R"({"rope_theta": 500000.0, "num_attention_heads": 4, "hidden_act": "gelu",
                        "rope_scaling": {"rope_type": "llama3", "factor": 8.0}})"),
              ElementsAre(HasSubstr("rope_scaling is"), HasSubstr("hidden_act is gelu"),
                          HasSubstr("rope_theta is 500000.0, model.rope_theta here 10000.0"),
                          HasSubstr("num_attention_heads is 4, model.heads here 2")));
  EXPECT_THAT(lines(R"({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5},
                        "partial_rotary_factor": 0.5})"),
              ElementsAre(HasSubstr("partial_rotary_factor"), HasSubstr("rope_theta is 500000.0")));
  EXPECT_TRUE(absl::IsDataLoss(DifferencesFrom("{", "config.json", QwenConfig()).status()));
  EXPECT_TRUE(absl::IsDataLoss(DifferencesFrom("[]", "config.json", QwenConfig()).status()));
}

}  // namespace
}  // namespace lt2
