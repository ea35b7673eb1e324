// What is done while messages of a layer are under way, by the log of a dry run.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/allocator.h"
#include "core/cost_log.h"
#include "core/strings.h"
#include "model/looped_stack.h"
#include "model/mixers/registry.h"
#include "tests/model/mixer_cases.h"
#include "tests/support/tiny_model.h"

namespace lt2 {
namespace {

constexpr Device kMeta{Backend::kMeta};

struct Way {
  bool backward;
  std::vector<std::string> meanwhile;  // names of operators, one for each kernel
  int64_t Products() const { return std::ranges::count(meanwhile, "linear"); }
};

// Of collectives of this label, in their order.
std::vector<Way> WaysOf(const CostLog& log, std::string_view label) {
  std::vector<Way> ways;
  for (size_t i = 0; i < log.calls().size(); ++i) {
    const CostLog::Call& collective = log.calls()[i];
    if (collective.group == nullptr || collective.op != label) continue;
    EXPECT_GT(collective.waited, i) << label << " is not waited for";
    Way& way = ways.emplace_back(Way{collective.place.backward, {}});
    for (size_t call = i + 1; call < collective.waited; ++call) {
      const CostLog::Call& kernel = log.calls()[call];
      if (kernel.group == nullptr) way.meanwhile.emplace_back(kernel.op);
    }
  }
  return ways;
}

// Forward and backward of the case's first mixer on rank 1 of 2.
void RunMixer(const MixerCase& mixer_case, StateExchange exchange) {
  const MetaMeter meter;
  const ModelConfig config = ConfigOf(mixer_case);
  ParamSet params;
  const std::unique_ptr<Mixer> mixer =
      MakeMixer(mixer_case.mixers[0], config,
                {.scope = ParamScope(params), .root = ParamScope(params), .layers = 1});
  for (Param* param : params.all()) {
    param->BindValue(Tensor::Empty(param->spec.shape, DType::kF32, kMeta));
    param->BindGradient(Tensor::Empty(param->spec.shape, DType::kF32, kMeta));
    param->ExpectUses(1);
  }
  const std::unique_ptr<Communicator> cp = MakeMetaCommunicator(1, 2);
  ContextShard shard(*cp, 256, 1, kMeta, exchange);
  Stream stream{.device = kMeta};
  Tape tape(stream);
  const Tensor rows = Tensor::Empty({128, config.width}, DType::kF32, kMeta);
  const Var x = tape.Input(rows, /*needs_grad=*/true);
  const Var y = mixer->Forward(tape, x, {.documents = shard.documents(), .shard = &shard}).y_ND;
  tape.Backward({{y, rows.Clone()}}, std::span(&x, 1));
}

struct Gated {
  const char* mixer;
  int64_t products;  // of the gate of its output
};

class UnderWayTest : public testing::TestWithParam<Gated> {};

TEST_P(UnderWayTest, StatesTravelBesideTheProjectionOfTheOutputGate) {
  const auto [mixer, products] = GetParam();
  const CostLog log;
  RunMixer({mixer, {mixer}}, StateExchange::kGather);
  const std::vector<Way> there = WaysOf(log, "states to the right");
  const std::vector<Way> back = WaysOf(log, "state gradients to the left");
  ASSERT_EQ(there.size(), 1u);
  ASSERT_EQ(back.size(), 1u);
  EXPECT_FALSE(there[0].backward);
  EXPECT_TRUE(back[0].backward);
  EXPECT_EQ(there[0].Products(), products);
  EXPECT_EQ(back[0].Products(), 2 * products);  // of the input and of the weights
  // The scan itself is not among what is done meanwhile.
  for (const Way& way : {there[0], back[0]}) {
    for (const std::string& op : way.meanwhile) {
      EXPECT_TRUE(op == "linear" || op == "add_bias") << op;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Mixers, UnderWayTest,
                         testing::Values(Gated{"gdn", 1}, Gated{"kda", 2}, Gated{"gla", 1},
                                         Gated{"retnet", 1}, Gated{"mamba2", 1}, Gated{"mlstm", 1}),
                         [](const auto& info) { return std::string(info.param.mixer); });

TEST(UnderWay, RowsOfConvolutionsTravelBesideOtherProjections) {
  for (const char* label : {"tokens to the right", "gradients to the left"}) {
    SCOPED_TRACE(label);
    const bool backward = std::string_view(label) == "gradients to the left";
    {
      const CostLog log;
      RunMixer({"gdn", {"gdn"}}, StateExchange::kChain);
      const std::vector<Way> ways = WaysOf(log, label);
      ASSERT_EQ(ways.size(), 1u);
      EXPECT_EQ(ways[0].backward, backward);
      EXPECT_GT(std::ranges::count(ways[0].meanwhile, "narrow_linear"), 0);
    }
    const CostLog log;
    RunMixer({"mamba2", {"mamba2"}}, StateExchange::kChain);
    const std::vector<Way> ways = WaysOf(log, label);
    ASSERT_EQ(ways.size(), 3u);  // of x, B and C, the first of which is on its way longest
    const Way &x = backward ? ways[0] : ways[0], &B = ways[1], &C = ways[2];
    EXPECT_GE(x.Products(), backward ? 6 : 3);
    EXPECT_GE(B.Products(), backward ? 2 : 1);
    EXPECT_EQ(C.Products(), 0);
  }
}

constexpr int kRanks = 2, kPieces = 4;

// Forward and backward of a layer of full attention that ranks divide, on rank 1.
void RunDivided(bool sequence, Rebuild rebuild) {
  constexpr int64_t kTokens = 8192;
  const MetaMeter meter;
  const ModelConfig config = ConfigOf({"full", {"full"}}, {"loops=1", "layers=1"});
  const TensorSplit split{.ranks = kRanks, .sequence = sequence};
  ParamSet params;
  LoopedStack stack(config, ParamScope(params), split);
  for (Param* param : params.all()) {
    HoldPart(*param, split, /*rank=*/1);
    BindRandom(*param, DType::kF32, kMeta, /*seed=*/1);
    param->ExpectUses(param == stack.norm() ? 0 : 1);
  }
  const std::unique_ptr<Communicator> tp = MakeMetaCommunicator(1, kRanks);
  TensorShard shard(*tp, split.sequence, kTokens);
  const Documents documents(kTokens, 1, kMeta);
  Stream stream{.device = kMeta};
  Tape tape(stream);
  tape.set_rebuild(rebuild);
  const int64_t own = sequence ? kTokens / kRanks : kTokens;
  const Tensor rows = Tensor::Empty({own, config.width}, DType::kF32, kMeta);
  const Var x = tape.Input(rows, /*needs_grad=*/true);
  const Var h = stack.Forward(tape, x, documents, {.tensor = &shard}).h_ND;
  tape.Backward({{h, rows.Clone()}}, std::span(&x, 1));
}

// With shares of the tokens a layer's output goes in pieces, and so does its gradient.
TEST(UnderWay, PiecesOfALayersOutputTravelBesideItsProducts) {
  const CostLog log;
  RunDivided(/*sequence=*/true, Rebuild::kNothing);
  const std::vector<Way> out = WaysOf(log, "tokens out of a layer");
  const std::vector<Way> back = WaysOf(log, "gradients after a layer");
  ASSERT_EQ(out.size(), 2u * kPieces);   // of mixer and FFN
  ASSERT_EQ(back.size(), 2u * kPieces);  // of FFN and mixer
  for (int half = 0; half < 2; ++half) {
    const std::string op = half == 0 ? "linear" : "swiglu_ffn_out";
    const std::string op_back = half == 0 ? "swiglu_ffn_out" : "linear";
    for (int piece = 0; piece < kPieces; ++piece) {
      SCOPED_TRACE(StrCat("half ", half, ", piece ", piece));
      // A product of each rank's rows, of the pieces after this one; backward of those before it.
      const Way &there = out[half * kPieces + piece], &here = back[half * kPieces + piece];
      EXPECT_EQ(std::ranges::count(there.meanwhile, op), kRanks * (kPieces - 1 - piece));
      EXPECT_EQ(std::ranges::count(here.meanwhile, op_back), kRanks * piece);
      EXPECT_FALSE(there.backward);
      EXPECT_TRUE(here.backward);
    }
  }
}

// Gradients of what a layer reads, summed over ranks, while those of its weights are made.
TEST(UnderWay, GradientsBeforeALayerTravelBesideWeightGradients) {
  for (const bool sequence : {false, true}) {
    SCOPED_TRACE(StrCat("sequence ", sequence));
    const CostLog log;
    RunDivided(sequence, Rebuild::kNothing);
    const std::vector<Way> ways = WaysOf(log, "gradients before a layer");
    ASSERT_EQ(ways.size(), 2u);
    EXPECT_EQ(ways[0].meanwhile, std::vector<std::string>(2, "swiglu_ffn_in"));
    EXPECT_EQ(ways[1].meanwhile, std::vector<std::string>(3, "linear"));  // of q, k and v
  }
}

// Forward into the FFN in pieces, and again in backward, where shares alone were kept, beside the
// products that make the input's gradient.
TEST(UnderWay, TokensIntoALayerTravelBesideItsProducts) {
  const CostLog log;
  RunDivided(/*sequence=*/true, Rebuild::kCheap);
  const std::vector<Way> ways = WaysOf(log, "tokens into a layer");
  ASSERT_EQ(ways.size(), 1u + kPieces + 2);  // forward into mixer and FFN, backward FFN and mixer
  for (int piece = 0; piece < kPieces; ++piece) {
    const Way& way = ways[1 + piece];
    EXPECT_FALSE(way.backward);
    EXPECT_EQ(std::ranges::count(way.meanwhile, "swiglu_ffn_in"), kRanks * piece);
  }
  const Way &ffn = ways[1 + kPieces], &mixer = ways[2 + kPieces];
  EXPECT_TRUE(ffn.backward);
  EXPECT_EQ(std::ranges::count(ffn.meanwhile, "swiglu_ffn_in"), 2);
  EXPECT_TRUE(mixer.backward);
  EXPECT_EQ(mixer.Products(), 3);
}

}  // namespace
}  // namespace lt2
