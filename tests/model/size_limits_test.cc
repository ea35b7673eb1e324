#include "model/size_limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "core/strings.h"
#include "kernels/gpu_limits.h"
#include "model/mixers/registry.h"
#include "tests/model/mixer_cases.h"

namespace lt2 {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr RunSizes kRun{.tensor_ranks = 1, .tokens = 8192};

std::string Refusal(const std::string& kind, const std::vector<std::string>& overrides,
                    const RunSizes& run = kRun, Backend backend = Backend::kCuda) {
  const ModelConfig config = ConfigOf({.name = kind, .mixers = {kind}, .overrides = overrides});
  return std::string(CheckSizes(config, backend, run).message());
}

TEST(SizeLimits, TheSmallModelsOfTestsAreTaken) {
  for (const MixerCase& mixer_case : AllMixerCases()) {
    EXPECT_TRUE(CheckSizes(ConfigOf(mixer_case), Backend::kCuda, kRun).ok()) << mixer_case.name;
  }
}

// Options with which a key has 256 channels, and with which it has more.
struct Keys {
  std::string kind, key;
  std::vector<std::string> taken, refused;
};

TEST(SizeLimits, ScansTakeKeysOf256Channels) {
  const std::vector<Keys> all = {
      {"gdn", "head_dim", {"gdn.head_dim=256"}, {"gdn.head_dim=257"}},
      {"kda", "head_dim", {"kda.head_dim=256"}, {"kda.head_dim=257"}},
      {"deltanet", "expand_k", {"deltanet.expand_k=32"}, {"deltanet.expand_k=32.125"}},
      {"linear", "expand_k", {"linear.expand_k=32"}, {"linear.expand_k=64"}},
      {"retnet", "expand_k", {"retnet.expand_k=32"}, {"retnet.expand_k=64"}},
      {"gla", "expand_k", {"gla.expand_k=32"}, {"gla.expand_k=64"}},
      {"hgrn2",
       "expand_ratio",
       {"width=1024", "hgrn2.expand_ratio=256"},
       {"width=1024", "hgrn2.expand_ratio=512"}},
      {"mamba2", "state_dim", {"mamba2.state_dim=256"}, {"mamba2.state_dim=257"}},
      {"mlstm", "qk_factor", {"mlstm.qk_factor=32"}, {"mlstm.qk_factor=64"}}};
  for (const auto& [kind, key, taken, refused] : all) {
    SCOPED_TRACE(kind);
    EXPECT_THAT(Refusal(kind, taken), IsEmpty());
    EXPECT_THAT(Refusal(kind, refused), HasSubstr(StrCat("model.", kind, ".", key, ": ")));
    EXPECT_THAT(Refusal(kind, refused),
                AllOf(HasSubstr(" channels of a key, and GPUs take at most 256; set "),
                      HasSubstr(StrCat(" in [model.", kind, "], or use --device cpu"))));
    EXPECT_THAT(Refusal(kind, refused, kRun, Backend::kCpu), IsEmpty());
  }
}

// What is to be set instead is taken.
TEST(SizeLimits, TheProposalIsTaken) {
  const std::string wide = "width=2048";
  EXPECT_THAT(Refusal("deltanet", {wide}),
              AllOf(HasSubstr("model.deltanet.expand_k: 512 channels"),
                    HasSubstr("set heads = 8 or more, or a smaller expand_k")));
  EXPECT_THAT(Refusal("deltanet", {wide, "deltanet.heads=8"}), IsEmpty());
  EXPECT_THAT(Refusal("kda", {wide}),
              HasSubstr("model.kda.head_dim: 512 channels of a key, and "
                        "GPUs take at most 256; set head_dim = 256 or less"));
  EXPECT_THAT(Refusal("kda", {wide, "kda.head_dim=256"}), IsEmpty());
}

TEST(SizeLimits, AttentionTakesHeadsThatFitAWarpsMemory) {
  for (const char* kind : {"full", "window"}) {
    EXPECT_THAT(Refusal(kind, {"head_dim=1504"}), IsEmpty());
    EXPECT_THAT(Refusal(kind, {"head_dim=1506"}),
                HasSubstr("model.head_dim: 1506 channels of a head, and GPUs take at most 1504"));
  }
}

TEST(SizeLimits, NormsTakeRowsThatAreHeldInRegisters) {
  EXPECT_THAT(Refusal("full", {"width=16384", "head_dim=64"}), IsEmpty());
  EXPECT_THAT(Refusal("full", {"width=16392", "head_dim=64"}),
              HasSubstr("model.width: 16392 channels of a row to be normed, and GPUs take at most "
                        "16384; set width = 16384 or less in [model]"));
  EXPECT_THAT(Refusal("full", {"width=8196", "head_dim=64"}), HasSubstr("at most 8192"));
  const std::vector<std::string> mamba2 = {"width=12288", "mamba2.heads=16"};
  EXPECT_THAT(Refusal("mamba2", mamba2),
              AllOf(HasSubstr("model.mamba2.groups: 24576 channels"), HasSubstr("groups = 2")));
  EXPECT_THAT(Refusal("mamba2", {mamba2[0], mamba2[1], "mamba2.groups=2"}), IsEmpty());
}

TEST(SizeLimits, AnExitGateTakes64Loops) {
  EXPECT_THAT(Refusal("full", {"loops=64", "exit_gate=true"}), IsEmpty());
  EXPECT_THAT(Refusal("full", {"loops=65", "exit_gate=true"}), HasSubstr("model.loops: 65 loops"));
  EXPECT_THAT(Refusal("full", {"loops=65"}), IsEmpty());
}

// The least number that is refused, of an option that `set` writes into overrides.
int64_t LeastRefused(const std::string& kind, const RunSizes& run, int64_t most,
                     const std::function<std::vector<std::string>(int64_t)>& set) {
  int64_t least = 2;
  while (least <= most && Refusal(kind, set(least), run).empty()) least += 2;
  return least;
}

TEST(SizeLimits, SparseAttentionTakesTilesThatFitSharedMemory) {
  const auto nsa = [](int64_t head_dim) -> std::vector<std::string> {
    return {"nsa.heads=32", "nsa.kv_heads=2", StrCat("nsa.head_dim=", head_dim)};
  };
  const int64_t head = LeastRefused("nsa", kRun, 1000, nsa);
  EXPECT_LE(gpu::SelectBlocksBytes(16, head - 2), gpu::kMostTileBytes);
  EXPECT_GT(gpu::SelectBlocksBytes(16, head), gpu::kMostTileBytes);
  EXPECT_THAT(Refusal("nsa", nsa(head)), AllOf(HasSubstr("model.nsa.head_dim: "),
                                               HasSubstr("channels of a head, 16 in a group")));

  const auto dsa = [](int64_t value_dim) -> std::vector<std::string> {
    return {"dsa.kv_heads=1",   "dsa.heads=64",    "dsa.index_heads=16",
            "dsa.index_dim=64", "dsa.tail_dim=64", StrCat("dsa.value_dim=", value_dim)};
  };
  for (const int64_t ranks : {1, 4}) {
    SCOPED_TRACE(ranks);
    const int64_t heads = 64 / ranks;
    const int64_t value = LeastRefused("dsa", {.tensor_ranks = ranks, .tokens = 8192}, 1500, dsa);
    const auto bytes = [&](int64_t value_dim) {
      return gpu::IndexerLossBytes(16, 64, heads, heads, value_dim + 64);
    };
    EXPECT_LE(bytes(value - 2), gpu::kMostTileBytes);
    EXPECT_GT(bytes(value), gpu::kMostTileBytes);
  }
  // What learns nothing needs less.
  EXPECT_THAT(Refusal("dsa", dsa(512)), HasSubstr("model.dsa.value_dim: 576 channels"));
  EXPECT_THAT(Refusal("dsa", dsa(512), {.tensor_ranks = 1, .tokens = 0}), IsEmpty());
  std::vector<std::string> released = dsa(512);
  released.push_back("dsa.as_released=true");
  EXPECT_THAT(Refusal("dsa", released), IsEmpty());
}

TEST(SizeLimits, ListsOfReadersAreCountedIn32Bits) {
  const std::vector<std::string> keys = {"dsa.kv_heads=1", "dsa.top_k=2048"};
  EXPECT_THAT(Refusal("dsa", keys, {.tensor_ranks = 1, .tokens = 1 << 19}), IsEmpty());
  EXPECT_THAT(Refusal("dsa", keys, {.tensor_ranks = 1, .tokens = 1 << 20}),
              AllOf(HasSubstr("model.dsa.top_k: 2147483648 keys"), HasSubstr("top_k = 2047")));
}

TEST(SizeLimits, EveryMistakeIsTold) {
  ModelConfig config = ConfigOf({.name = "two",
                                 .mixers = {"kda", "gla"},
                                 .overrides = {"kda.head_dim=300", "gla.expand_k=64"}});
  const std::string message(CheckSizes(config, Backend::kCuda, kRun).message());
  EXPECT_THAT(message, AllOf(HasSubstr("model.kda.head_dim: 300"), HasSubstr("\nmodel.")));
  EXPECT_THAT(message, HasSubstr("model.gla.expand_k: 512"));
}

}  // namespace
}  // namespace lt2
