// DeepSeek sparse attention beyond the suite: who learns from which loss, and its options.
#include "model/mixers/dsa/dsa.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "absl/strings/str_cat.h"
#include "tests/support/tiny_model.h"

namespace lt2 {
namespace {

using testing::HasSubstr;

std::string Text(const std::string& options, const std::string& model) {
  return absl::StrCat("width = 32\nlayers = 2\nloops = 2\nheads = 4\nffn = 24\nvocab = 37\n", model,
                      "\nmixers = ['dsa']\n[dsa]\n", options);
}

ModelConfig Config(const std::string& options) {
  const ConfigTable table = *ConfigTable::Parse(Text(options, ""), "test");
  ModelConfig config = ReadModelConfig(table);
  CHECK(table.Finish().ok()) << table.Finish().ToString();
  return config;
}

std::string ErrorOf(const std::string& options, const std::string& model = "") {
  const ConfigTable table = *ConfigTable::Parse(Text(options, model), "test");
  ReadModelConfig(table);
  return std::string(table.Finish().message());
}

bool OfIndexer(const std::string& name) { return name.find("_score_") != std::string::npos; }

// The language model's loss leaves the indexer alone, and the indexer's loss all other parameters.
TEST(Dsa, EachLossTrainsItsOwnPart) {
  const ModelConfig config = Config("top_k = 8");
  const TinyModel::Tokens tokens = RandomTokens(config, 90, 2, 7);
  const auto grads = [&](double weight) {
    TinyModel tiny(config, DType::kF64, Backend::kCpu);
    tiny.auxiliary_weight = weight;
    return tiny.ForwardBackward(tokens).grads;
  };
  const auto none = grads(0), one = grads(1), two = grads(2);
  int of_indexer = 0;
  for (const auto& [name, grad] : one) {
    if (!OfIndexer(name)) {
      EXPECT_EQ(grad, none.at(name)) << name;
      continue;
    }
    ++of_indexer;
    double norm = 0;
    for (size_t i = 0; i < grad.size(); ++i) {
      EXPECT_EQ(none.at(name)[i], 0) << name;
      EXPECT_EQ(two.at(name)[i], 2 * grad[i]) << name;
      norm += grad[i] * grad[i];
    }
    EXPECT_GT(norm, 0) << name;
  }
  EXPECT_EQ(of_indexer, 2 * 5);
}

double OwnLosses(TinyModel& tiny, const TinyModel::Tokens& tokens) {
  const Documents documents = Documents::Of(tokens.cu_seqlens, tiny.stream.device);
  Tape tape(tiny.stream);
  const LanguageModel::Loss loss = tiny.model.Forward(
      tape, Tensor::FromHost(tokens.ids, {documents.tokens()}, tiny.stream.device),
      Tensor::FromHost(tokens.targets, {documents.tokens()}, tiny.stream.device), documents);
  EXPECT_EQ(loss.auxiliary.size(), 4u);
  double sum = 0;
  for (const Var& own : loss.auxiliary) sum += own.value.data<double>()[0];
  return sum;
}

// The indexer's gradient is the derivative of its loss. Every token reads all before it, so that no
// choice changes.
TEST(Dsa, TheIndexersGradientIsTheDerivativeOfItsLoss) {
  const ModelConfig config = Config("top_k = 64\nindex_loss = 0.5");
  const TinyModel::Tokens tokens = RandomTokens(config, 40, 2, 7);
  TinyModel tiny(config, DType::kF64, Backend::kCpu);
  const auto grads = tiny.ForwardBackward(tokens).grads;
  std::mt19937_64 random(5);
  std::normal_distribution<double> normal;
  for (Param* param : tiny.model.params().all()) {
    if (!OfIndexer(param->spec.name)) continue;
    const std::vector<double> base = param->value.ToDoubles();
    const std::vector<double>& grad = grads.at(param->spec.name);
    std::vector<double> direction(base.size());
    double length = 0, slope = 0, norm = 0;
    for (double& x : direction) x = normal(random), length += x * x;
    for (size_t i = 0; i < base.size(); ++i) {
      direction[i] /= std::sqrt(length);
      slope += direction[i] * grad[i];
      norm += grad[i] * grad[i];
    }
    const auto at = [&](double step) {
      double* value = param->value.data<double>();
      for (size_t i = 0; i < base.size(); ++i) value[i] = base[i] + step * direction[i];
      return OwnLosses(tiny, tokens);
    };
    const double h = 1e-6;
    const double numeric = (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h);
    at(0);
    EXPECT_NEAR(numeric, slope, 1e-6 * std::sqrt(norm)) << param->spec.name;
  }
}

TEST(Dsa, TrainingLowersTheIndexersLoss) {
  const ModelConfig config = Config("top_k = 16");
  const TinyModel::Tokens tokens = RandomTokens(config, 60, 1, 7);
  TinyModel tiny(config, DType::kF64, Backend::kCpu);
  const double before = OwnLosses(tiny, tokens);
  for (int step = 0; step < 20; ++step) {
    tiny.ForwardBackward(tokens);
    for (Param* param : tiny.model.params().all()) {
      if (!OfIndexer(param->spec.name)) continue;
      for (int64_t i = 0; i < param->value.size(); ++i) {
        param->value.data<double>()[i] -= 3e-3 * param->main_grad.data<double>()[i];
      }
    }
  }
  EXPECT_LT(OwnLosses(tiny, tokens), 0.8 * before);
}

TEST(Dsa, AsReleasedTheIndexerIsNotTrained) {
  const ModelConfig config = Config("top_k = 8\nas_released = true");
  TinyModel tiny(config, DType::kF64, Backend::kCpu);
  const TinyModel::Tokens tokens = RandomTokens(config, 90, 2, 7);
  const auto grads = tiny.ForwardBackward(tokens).grads;
  int of_indexer = 0;
  for (const Param* param : tiny.model.params().all()) {
    if (!OfIndexer(param->spec.name)) continue;
    ++of_indexer;
    EXPECT_FALSE(param->spec.decay);
    EXPECT_THAT(grads.at(param->spec.name), testing::Each(0)) << param->spec.name;
  }
  EXPECT_EQ(of_indexer, 2 * 2);
}

// The lists say everything: with as many keys as there are tokens the indexer does not matter, with
// fewer it does.
TEST(Dsa, TheIndexerDecidesOnlyWhatIsRead) {
  for (const int64_t top_k : {90, 8}) {
    const ModelConfig config = Config(absl::StrCat("top_k = ", top_k));
    TinyModel tiny(config, DType::kF64, Backend::kCpu);
    const TinyModel::Tokens tokens = RandomTokens(config, 90, 1, 7);
    const double before = tiny.LossOnly(tokens);
    for (Param* param : tiny.model.params().all()) {
      if (!param->spec.name.ends_with("k_score_proj.weight")) continue;
      for (double& x : param->value.span<double>()) x = -x;
    }
    EXPECT_EQ(tiny.LossOnly(tokens) == before, top_k == 90);
  }
}

TEST(Dsa, DefaultsAreThePapersSizes) {
  ModelConfig config{.width = 2048, .heads = 16, .kv_heads = 16, .head_dim = 128};
  const auto o = DeepSeekSparseAttention::ReadOptions(config, ConfigTable());
  EXPECT_EQ(o.value_dim, 512);
  EXPECT_EQ(o.latent(), 576);
  EXPECT_EQ(o.top_k, 2048);
  EXPECT_EQ(o.index_heads * o.index_dim, 16 * 64);
  ParamSet set;
  const ConfigTable released = *ConfigTable::Parse("as_released = true", "test");
  const DeepSeekSparseAttention mixer(DeepSeekSparseAttention::ReadOptions(config, released),
                                      {.scope = ParamScope(set), .root = ParamScope(set)});
  EXPECT_NEAR(static_cast<double>(set.elements()), 39.1e6, 0.05e6);
}

TEST(Dsa, MistakesSayWhatIsAllowed) {
  EXPECT_EQ(ErrorOf("", "kv_heads = 1"), "");
  EXPECT_EQ(ErrorOf("kv_heads = 1", "kv_heads = 2"), "");
  EXPECT_THAT(ErrorOf("", "kv_heads = 2"), HasSubstr("all heads of dsa share one latent"));
  EXPECT_THAT(ErrorOf("kv_heads = 4"), HasSubstr("it must be 1"));
  EXPECT_THAT(ErrorOf("top_k = 0"), HasSubstr("top_k"));
  EXPECT_THAT(ErrorOf("as_released = true\nindex_loss = 1"), HasSubstr("is not trained"));
  EXPECT_THAT(ErrorOf("topk = 3"), HasSubstr("did you mean 'top_k'?"));
}

}  // namespace
}  // namespace lt2
