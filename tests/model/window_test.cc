// Attention windows that differ from loop to loop: what they see, what they cost, how they decode.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/decoder.h"
#include "tests/support/tiny_model.h"

namespace lt2 {
namespace {

using testing::HasSubstr;

std::string Text(int64_t loops, const std::string& kind, const std::string& window) {
  return "width = 16\nlayers = 1\nheads = 2\nkv_heads = 1\nffn = 24\nvocab = 19\nloops = " +
         std::to_string(loops) + "\nmixers = ['" + kind + "']\n[" + kind + "]\n" + window;
}

ModelConfig Config(int64_t loops, const std::string& kind, const std::string& window) {
  const ConfigTable table = *ConfigTable::Parse(Text(loops, kind, window), "test");
  ModelConfig config = ReadModelConfig(table);
  CHECK(table.Finish().ok()) << table.Finish().ToString();
  return config;
}

std::string ErrorOf(int64_t loops, const std::string& window) {
  const ConfigTable table = *ConfigTable::Parse(Text(loops, "window", window), "test");
  ReadModelConfig(table);
  return std::string(table.Finish().message());
}

TEST(Window, MistakesSayWhatIsAllowed) {
  EXPECT_THAT(ErrorOf(4, "window = [0, 512]"), HasSubstr("lists 2 windows for 4 loops"));
  EXPECT_THAT(ErrorOf(2, "window = [4, -1]"), HasSubstr("0 sees all tokens"));
  EXPECT_THAT(ErrorOf(1, "window = 'all'"), HasSubstr("wants an integer"));
  EXPECT_THAT(ErrorOf(1, "windows = 3"), HasSubstr("did you mean 'window'?"));
}

// The first token whose hidden state changes with token `changed`, and the last.
std::pair<int64_t, int64_t> Reach(const ModelConfig& config, int64_t changed) {
  TinyModel tiny(config, DType::kF64, Backend::kCpu);
  const int64_t length = 80;
  TinyModel::Tokens tokens = RandomTokens(config, length, 1, 5);
  const auto hidden = [&] {
    return tiny.model
        .Hidden(tiny.stream, Tensor::FromHost(tokens.ids, {length}, tiny.stream.device),
                Documents::Of(tokens.cu_seqlens, tiny.stream.device))
        .ToDoubles();
  };
  const std::vector<double> before = hidden();
  tokens.ids[changed] = (tokens.ids[changed] + 1) % static_cast<int32_t>(config.vocab);
  const std::vector<double> after = hidden();
  int64_t first = -1, last = -1;
  for (int64_t i = 0; i < length * config.width; ++i) {
    if (before[i] == after[i]) continue;
    if (first < 0) first = i / config.width;
    last = i / config.width;
  }
  return {first, last};
}

// A layer looks back window - 1 tokens, and every loop adds its own.
TEST(Window, ReachesAsFarAsItsLoopsTogether) {
  using Span = std::pair<int64_t, int64_t>;
  EXPECT_EQ(Reach(Config(1, "window", "window = 5"), 10), (Span{10, 14}));
  EXPECT_EQ(Reach(Config(3, "window", "window = 5"), 10), (Span{10, 22}));
  EXPECT_EQ(Reach(Config(3, "window", "window = [9, 1, 4]"), 10), (Span{10, 21}));
  EXPECT_EQ(Reach(Config(2, "window", "window = [3, 0]"), 10), (Span{10, 79}));
  EXPECT_EQ(Reach(Config(2, "full", "window = [3, 2]"), 10), (Span{10, 13}));
  EXPECT_EQ(Reach(Config(1, "full", ""), 10), (Span{10, 79}));
}

TEST(Window, DecodingSeesEachLoopsWindow) {
  const ModelConfig config = Config(3, "window", "window = [0, 7, 3]");
  TinyModel tiny(config, DType::kF64, Backend::kCpu);
  const int64_t length = 40;
  const TinyModel::Tokens tokens = RandomTokens(config, length, 1, 6);
  const std::vector<double> want =
      tiny.model
          .Logits(tiny.stream,
                  tiny.model.Hidden(tiny.stream,
                                    Tensor::FromHost(tokens.ids, {length}, tiny.stream.device),
                                    Documents::Rows(1, length, tiny.stream.device)))
          .ToDoubles();
  Decoder decoder(tiny.model, tiny.stream, 1, length, DType::kF64);
  const std::vector<std::vector<int32_t>> prompts = {{tokens.ids.begin(), tokens.ids.begin() + 12}};
  Tensor logits = decoder.Prefill(prompts);
  for (int64_t t = 11; t < length; ++t) {
    const std::vector<double> row(want.begin() + t * config.vocab,
                                  want.begin() + (t + 1) * config.vocab);
    EXPECT_LE(RelativeDifference(logits.ToDoubles(), row), 1e-11) << "token " << t;
    if (t + 1 < length) logits = decoder.Step({&tokens.ids[t + 1], 1});
  }
}

TEST(Window, FlopsCountTheKeysSeen) {
  const auto flops = [](int64_t loops, const std::string& kind, const std::string& window) {
    return TinyModel(Config(loops, kind, window), DType::kF32, Backend::kMeta)
        .model.FlopsPerToken(100);
  };
  const double full = flops(1, "full", ""), ten = flops(1, "window", "window = 10");
  // Two heads of 8, 4 operations a key and channel: 50.5 keys against 10 less the 45 missing ones
  // of the first tokens over 100.
  EXPECT_NEAR(full - ten, 64 * (50.5 - (10 - 0.45)), 1e-9);
  EXPECT_EQ(flops(1, "window", "window = 100"), full);
  const double mixed = flops(2, "window", "window = [0, 10]"), twice = flops(2, "full", "");
  EXPECT_NEAR(twice - mixed, full - ten, 1e-9);
}

}  // namespace
}  // namespace lt2
