// Native sparse attention: head layouts and options, sizes, and that a small model selects.
#include "model/mixers/nsa/nsa.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/mixers/registry.h"
#include "tests/support/tiny_model.h"

namespace lt2 {
namespace {

using testing::HasSubstr;

std::string Text(const std::string& heads, const std::string& nsa) {
  return "width = 64\nlayers = 1\nffn = 24\nvocab = 19\nmixers = ['nsa']\n" + heads + "\n[nsa]\n" +
         nsa;
}

ModelConfig Config(const std::string& heads, const std::string& nsa) {
  const ConfigTable table = *ConfigTable::Parse(Text(heads, nsa), "test");
  ModelConfig config = ReadModelConfig(table);
  CHECK(table.Finish().ok()) << table.Finish().ToString();
  return config;
}

std::string ErrorOf(const std::string& heads, const std::string& nsa = "") {
  const ConfigTable table = *ConfigTable::Parse(Text(heads, nsa), "test");
  ReadModelConfig(table);
  EXPECT_EQ(table.Finish().code(), absl::StatusCode::kInvalidArgument);
  return std::string(table.Finish().message());
}

NativeSparseAttention::Options OptionsOf(const std::string& heads, const std::string& nsa = "") {
  const ModelConfig config = Config(heads, nsa);
  const auto found = config.mixer_options.find("nsa");
  return NativeSparseAttention::ReadOptions(
      config, found == config.mixer_options.end() ? ConfigTable() : found->second);
}

TEST(Nsa, GroupsOfHeadsThatCannotSelectAreRefusedWithTheRule) {
  const std::string rule = "heads / kv_heads must be a power of two, 16 or more";
  EXPECT_THAT(ErrorOf("heads = 16\nkv_heads = 2"), HasSubstr(rule));
  EXPECT_THAT(ErrorOf("heads = 16\nkv_heads = 2"), HasSubstr("is 16 / 2"));
  EXPECT_THAT(ErrorOf("heads = 4\nkv_heads = 1"), HasSubstr(rule));
  EXPECT_THAT(ErrorOf("heads = 4", "kv_heads = 4"), HasSubstr("nsa.kv_heads"));
  EXPECT_THAT(ErrorOf("heads = 4", "heads = 24"), HasSubstr("nsa.heads"));
  EXPECT_THAT(ErrorOf("heads = 4", "heads = 24\nhead_dim = 4"), HasSubstr(rule));
  EXPECT_THAT(ErrorOf("heads = 4", "heads = 32\nkv_heads = 3"), HasSubstr("is 32 / 3"));
  EXPECT_THAT(ErrorOf("heads = 4", "heads = 48\nkv_heads = 1\nhead_dim = 4"), HasSubstr(rule));
  EXPECT_THAT(ErrorOf("heads = 4", "kv_heads = 0"), HasSubstr(rule));
  EXPECT_THAT(ErrorOf("heads = 4", "heads = 64"), HasSubstr("must be even"));
  EXPECT_THAT(ErrorOf("heads = 4", "block_counts = 2"), HasSubstr("from 3 to"));
  EXPECT_THAT(ErrorOf("heads = 4", "block_size = 0"), HasSubstr("nsa.block_size"));
  EXPECT_THAT(ErrorOf("heads = 4", "window = 0"), HasSubstr("nsa.window"));
  EXPECT_THAT(ErrorOf("heads = 4", "top_k = 3"), HasSubstr("nsa.top_k"));
}

TEST(Nsa, HeadsAreTheModelsWhereTheyMakeAGroup) {
  const auto expect = [](const NativeSparseAttention::Options& options, int64_t heads,
                         int64_t kv_heads, int64_t head_dim) {
    EXPECT_EQ(options.heads, heads);
    EXPECT_EQ(options.kv_heads, kv_heads);
    EXPECT_EQ(options.head_dim, head_dim);
  };
  expect(OptionsOf("heads = 4"), 16, 1, 4);
  expect(OptionsOf("heads = 32"), 32, 2, 2);
  expect(OptionsOf("heads = 32\nkv_heads = 1"), 32, 1, 2);
  expect(OptionsOf("heads = 4\nhead_dim = 32"), 16, 1, 8);
  expect(OptionsOf("heads = 4", "heads = 32\nkv_heads = 1\nhead_dim = 6"), 32, 1, 6);
  const NativeSparseAttention::Options defaults = OptionsOf("heads = 4");
  EXPECT_EQ(defaults.block_size, 64);
  EXPECT_EQ(defaults.block_counts, 16);
  EXPECT_EQ(defaults.window, 512);
}

// 2 d H D + 2 d G D + 3 d H, at the published sizes.
TEST(Nsa, ParametersAreThoseOfThePublishedLayer) {
  for (const auto& [heads, count] : {std::pair(64, 18219008), std::pair(32, 9109504)}) {
    ModelConfig config;
    config.width = 2048, config.heads = config.kv_heads = 16, config.head_dim = 128;
    ConfigTable table;
    table.Set("heads", int64_t{heads});
    table.Set("head_dim", int64_t{64});
    config.mixer_options["nsa"] = table;
    ParamSet params;
    MakeMixer("nsa", config, {.scope = ParamScope(params), .root = ParamScope(params)});
    int64_t size = 0;
    for (const Param* param : params.all()) size += param->spec.shape.size();
    EXPECT_EQ(size, count);
  }
}

std::vector<double> Hidden(const std::string& nsa, int64_t length) {
  const ModelConfig config = Config("heads = 4", nsa);
  TinyModel tiny(config, DType::kF64, Backend::kCpu);
  const TinyModel::Tokens tokens = RandomTokens(config, length, 1, 5);
  return tiny.model
      .Hidden(tiny.stream, Tensor::FromHost(tokens.ids, {length}, tiny.stream.device),
              Documents::Rows(1, length, tiny.stream.device))
      .ToDoubles();
}

// The first token at which two settings of the layer differ by more than rounding; they do at every
// one from there on.
int64_t FirstDifference(const std::string& a, const std::string& b) {
  constexpr int64_t kLength = 60, kWidth = 64;
  const std::vector<double> hidden_a = Hidden(a, kLength), hidden_b = Hidden(b, kLength);
  int64_t first = kLength;
  for (int64_t t = kLength - 1; t >= 0; --t) {
    const auto row = [&](const std::vector<double>& hidden) {
      return std::vector<double>(hidden.begin() + t * kWidth, hidden.begin() + (t + 1) * kWidth);
    };
    if (RelativeDifference(row(hidden_a), row(hidden_b)) < 1e-12) continue;
    EXPECT_TRUE(first == kLength || first == t + 1) << "token " << t << " differs, not the next";
    first = t;
  }
  return first;
}

TEST(Nsa, OptionsCountFromTheFirstTokenThatTheyLeaveWithLess) {
  const std::string all = "block_size = 4\nblock_counts = 15\nwindow = 60";
  EXPECT_EQ(FirstDifference(all, "block_size = 4\nblock_counts = 3\nwindow = 60"), 12);
  EXPECT_EQ(FirstDifference(all, "block_size = 4\nblock_counts = 6\nwindow = 60"), 24);
  EXPECT_EQ(FirstDifference(all, "block_size = 4\nblock_counts = 15\nwindow = 7"), 7);
  // A block of four ends earlier than one of five: its mean is seen.
  EXPECT_EQ(FirstDifference(all, "block_size = 5\nblock_counts = 15\nwindow = 60"), 3);
}

}  // namespace
}  // namespace lt2
