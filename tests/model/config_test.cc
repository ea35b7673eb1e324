#include "model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "core/strings.h"
#include "model/mixers/registry.h"

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
  EXPECT_THAT(ErrorOf(good + "exit_gate = true"),
              HasSubstr("exit_gate: chooses among loops: it needs loops of 2 or more, loops is 1"));
  EXPECT_EQ(ErrorOf(good + "exit_gate = true\nloops = 2\nloop_norm = true\nsandwich_norm = true"),
            "");
  EXPECT_THAT(ErrorOf(good + "exit_entropy = -0.1"), HasSubstr("exit_entropy: must be from 0"));
  EXPECT_THAT(ErrorOf(good + "sandwich_norms = true"), HasSubstr("did you mean 'sandwich_norm'?"));
  EXPECT_THAT(ErrorOf(good + "rope_style = 'full'"), HasSubstr("interleaved"));
  EXPECT_THAT(ErrorOf(good + "loop = 2"), HasSubstr("loops"));
  EXPECT_THAT(ErrorOf(good + "mixers = ['gdn']\n[gdn]\nv_heads = 6"),
              HasSubstr("6 is not a multiple of heads 4"));
  EXPECT_THAT(ErrorOf(good + "mixers = ['deltanet']\n[deltanet]\nheads = 3"),
              HasSubstr("deltanet.expand_k"));
  EXPECT_THAT(ErrorOf("layers = 0\nheads = 4\nvocab = 10"),
              testing::AllOf(HasSubstr("width"), HasSubstr("layers")));
}

// kGood with heads and options of mixers, 24 channels of the FFN.
std::string SplitError(const std::string& more, int ranks) {
  const ConfigTable table =
      *ConfigTable::Parse(StrCat("width = 32\nlayers = 2\nvocab = 10\nffn = 24\n", more), "split");
  const ModelConfig config = ReadModelConfig(table);
  EXPECT_TRUE(table.Finish().ok()) << table.Finish();
  const absl::Status status = CheckSplit(config, {.ranks = ranks});
  EXPECT_EQ(status.ok() || absl::IsInvalidArgument(status), true);
  return std::string(status.message());
}

TEST(ModelConfig, SplitsAreRefusedWithTheLegalNumbersOfRanks) {
  EXPECT_EQ(SplitError("heads = 4", 4), "");
  EXPECT_EQ(SplitError("heads = 4", 3),
            "tp = 3: full's heads = 4 must be a multiple of tp; legal: 1, 2, 4");
  // Key and value heads may be fewer than ranks, but each on as many.
  EXPECT_EQ(SplitError("heads = 8\nkv_heads = 2", 8), "");
  EXPECT_EQ(SplitError("heads = 6\nhead_dim = 4\nkv_heads = 3", 2),
            "tp = 2: full's kv_heads = 3 must be a multiple or a divisor of tp; legal: 1, 3, 6");
  EXPECT_EQ(SplitError("heads = 4\nmixers = ['gdn', 'full']\n[gdn]\nheads = 2\nv_heads = 6", 4),
            "tp = 4: gdn's v_heads = 6 must be a multiple of tp; legal: 1, 2");
  EXPECT_EQ(SplitError("heads = 32\nhead_dim = 4\nkv_heads = 2\nmixers = ['nsa']", 4),
            "tp = 4: nsa's kv_heads = 2 must be a multiple of tp; legal: 1, 2");
  EXPECT_EQ(SplitError("heads = 16\nhead_dim = 4", 16),
            "tp = 16: ffn = 24 must be a multiple of tp; legal: 1, 2, 4, 8");
  EXPECT_EQ(SplitError("heads = 12\nhead_dim = 4", 12),
            "tp = 12: there are only vocab = 10 rows to divide; legal: 1, 2, 3, 4, 6");
}

TEST(ModelConfig, BoundsAreNamed) {
  const std::string good = kGood;
  EXPECT_THAT(ErrorOf(good + "mixers = []"), HasSubstr("must name at least one kind of: "));
  EXPECT_THAT(ErrorOf(good + "ffn = 10000000000"),
              HasSubstr("ffn: must be from 1 to 8388608, is 10000000000"));
  EXPECT_THAT(ErrorOf(good + "loops = 0"), HasSubstr("loops: must be from 1 to 4096, is 0"));
  EXPECT_THAT(ErrorOf("width = 32\nlayers = 4000\nloops = 4000\nheads = 4\nvocab = 10\n"),
              HasSubstr("are more than 65536"));
  EXPECT_THAT(ErrorOf("width = 99999999999999\nlayers = 1\nheads = 4\nvocab = 99999999999999"),
              testing::AllOf(HasSubstr("width: must be from 1 to 1048576"),
                             HasSubstr("vocab: must be from 1 to 16777216")));
  for (const char* line :
       {"norm_eps = 0", "norm_eps = nan", "rope_theta = -1.0", "rope_theta = inf",
        "mixers = ['gdn']\n[gdn]\nnorm_eps = 0.0", "mixers = ['gdn']\n[gdn]\nexpand_v = inf"}) {
    EXPECT_THAT(ErrorOf(good + line), HasSubstr("must be a finite number above 0")) << line;
  }
  EXPECT_THAT(ErrorOf(good + "mixers = ['gdn']\n[gdn]\nheads = 0\nhead_dim = 99999"),
              testing::AllOf(HasSubstr("heads: must be from 1 to 4096, is 0"),
                             HasSubstr("head_dim: must be from 1 to 4096, is 99999")));
}

TEST(ModelConfig, OneMistakeGivesOneLine) {
  const auto lines = [](const std::string& toml) {
    const std::string text = ErrorOf(toml);
    return std::count(text.begin(), text.end(), '\n') + 1;
  };
  EXPECT_EQ(lines("width = 'wide'\nlayers = 5\nheads = 4\nvocab = 10\n"), 1);
  EXPECT_EQ(lines("width = 32\nlayers = 5\nheads = -4\nvocab = 10\n[gdn]\nheads = 2"), 1);
  EXPECT_EQ(lines("width = 32\nlayers = 0\nheads = 4\nvocab = 10\nmixers = ['gdn']\n[gdn]\n"
                  "heads = 2"),
            1);
  EXPECT_EQ(lines("width = 30\nlayers = 5\nheads = 4\nvocab = 10\n"), 1);
}

// Also of a kind that no layer uses: the table may wait for its turn, but not with a mistake.
TEST(ModelConfig, OptionsOfAnotherMixerAreRefused) {
  const std::string good = "width = 32\nlayers = 2\nheads = 4\nvocab = 10\n";
  for (const std::string& kind : MixerKinds()) {
    for (const std::string& used : {kind, std::string("full")}) {
      EXPECT_THAT(
          ErrorOf(good + "mixers = ['" + used + "']\n[" + kind + "]\noption_of_another = 3"),
          HasSubstr(kind + ".option_of_another: unknown key"));
    }
  }
  EXPECT_THAT(ErrorOf(good + "mixers = ['gla']\n[gla]\nhead_dim = 8"),
              HasSubstr("gla.head_dim: unknown key; known here: heads, kv_heads, expand_k"));
  EXPECT_THAT(ErrorOf(good + "mixers = ['full']\n[mlstm]\ninit = 'big'"), HasSubstr("mlstm.init"));
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
