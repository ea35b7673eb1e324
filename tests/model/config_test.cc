#include "model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lt2 {
namespace {

using testing::HasSubstr;

std::string ErrorOf(const std::string& toml) {
  const ConfigTable table = *ConfigTable::Parse(toml, "test.toml");
  ReadModelConfig(table);
  return std::string(table.Finish().message());
}

constexpr char kGood[] = "width = 32\nlayers = 5\nheads = 4\nvocab = 10\n";

TEST(ModelConfig, DefaultsFollowTheWidth) {
  const ConfigTable table = *ConfigTable::Parse(kGood, "test.toml");
  const ModelConfig config = ReadModelConfig(table);
  EXPECT_TRUE(table.Finish().ok()) << table.Finish();
  EXPECT_EQ(config.head_dim, 8);
  EXPECT_EQ(config.kv_heads, 4);
  EXPECT_EQ(config.ffn, 256);
  EXPECT_EQ(config.loops, 1);
  EXPECT_TRUE(config.tie_embeddings);
}

TEST(ModelConfig, MistakesSayWhatIsAllowed) {
  const std::string good = kGood;
  EXPECT_THAT(ErrorOf("width = 30\nlayers = 1\nheads = 4\nvocab = 10"),
              HasSubstr("4 does not divide width 30"));
  EXPECT_THAT(ErrorOf(good + "kv_heads = 3"), HasSubstr("3 does not divide heads 4"));
  EXPECT_THAT(ErrorOf(good + "mixers = ['gdm', 'full']"), HasSubstr("did you mean 'gdn'?"));
  EXPECT_THAT(ErrorOf(good + "layout = 'bookend:3'"), HasSubstr("from 1 to half the layers, 2"));
  EXPECT_THAT(ErrorOf(good + "layout = 'middle'"), HasSubstr("interleave, bookend:K, front, back"));
  EXPECT_THAT(ErrorOf(good + "exit_gate = true"), HasSubstr("not supported by this version"));
  EXPECT_THAT(ErrorOf(good + "rope_style = 'full'"), HasSubstr("interleaved"));
  EXPECT_THAT(ErrorOf(good + "loop = 2"), HasSubstr("loops"));
  EXPECT_THAT(ErrorOf(good + "mixers = ['gdn']\n[gdn]\nv_heads = 6"),
              HasSubstr("6 is not a multiple of heads 4"));
  EXPECT_THAT(ErrorOf("layers = 0\nheads = 4\nvocab = 10"),
              testing::AllOf(HasSubstr("width"), HasSubstr("layers")));
}

TEST(ModelConfig, Layouts) {
  const auto kinds = [](const std::string& layout, int64_t layers) {
    ModelConfig config;
    config.layers = layers;
    config.mixers = {"gdn", "gdn", "full"};
    config.layout = layout;
    const std::vector<std::string> kinds = *LayerKinds(config);
    std::string text;
    for (const std::string& kind : kinds) text += kind[0];
    return text;
  };
  EXPECT_EQ(kinds("interleave", 7), "ggfggfg");
  EXPECT_EQ(kinds("front", 7), "ffggggg");
  EXPECT_EQ(kinds("back", 7), "gggggff");
  EXPECT_EQ(kinds("bookend:2", 7), "ffgggff");
}

}  // namespace
}  // namespace lt2
