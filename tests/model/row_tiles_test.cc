// Looped stacks of every mixer over a row in tiles: outputs and gradients of the embeddings have
// the same bits on any number of ranks.
#include "parallel/row_tiles.h"

#include <gtest/gtest.h>

#include <cstring>

#include "core/strings.h"
#include "kernels/case.h"
#include "kernels/init.h"
#include "model/looped_stack.h"
#include "parallel/thread_communicator.h"
#include "tests/model/mixer_cases.h"

namespace lt2 {
namespace {

constexpr int kTiles = 4;

struct Problem {
  ModelConfig config;
  DType dtype;
  RecomputePolicy recompute;
  std::vector<int32_t> documents;  // cu_seqlens
  int64_t tokens() const { return documents.back(); }
};

// Of all tokens, as bytes.
struct Result {
  std::vector<std::byte> h, dx;
};

// The tokens of this rank's tiles.
void RunTiles(const Problem& problem, Communicator& cp, Result* result) {
  ParamSet params;
  LoopedStack stack(problem.config, ParamScope(params), {});
  for (Param* param : params.all()) {
    param->BindValue(Tensor::Empty(param->spec.shape, problem.dtype, {}));
    param->BindGradient(Tensor::Zeros(param->spec.shape, problem.dtype, {}));
    InitParam(*param, /*seed=*/3);
    param->ExpectUses(1000);
  }
  const Shape all = {problem.tokens(), problem.config.width};
  const Tensor x = Tensor::FromHost(RandomNormal(5, "x", all).values, all, problem.dtype, {});
  const Tensor dy = Tensor::FromHost(RandomNormal(5, "dy", all).values, all, problem.dtype, {});
  const auto put = [&](const ContextShard& shard, const Tensor& rows, std::byte* to) {
    std::memcpy(to + shard.begin() * rows.bytes() / rows.dim(0), rows.raw(), rows.bytes());
  };

  Stream stream;
  Tape tape(stream);
  const std::vector<std::unique_ptr<Communicator>> tiles = TilesHere(cp, kTiles);
  std::vector<std::unique_ptr<ContextShard>> shards;
  std::vector<Var> in;
  std::vector<Tape::Seed> seeds;
  for (const auto& tile : tiles) {
    shards.push_back(std::make_unique<ContextShard>(*tile, problem.tokens(), 16, Device{}));
    ContextShard& shard = *shards.back();
    shard.Fill(problem.documents);
    const int64_t begin = shard.begin(), end = begin + shard.tokens();
    in.push_back(tape.Input(x.Rows(begin, end), /*needs_grad=*/true));
    const LoopedStack::Output out = stack.Forward(
        tape, in.back(), shard.documents(), {.recompute = problem.recompute, .shard = &shard});
    seeds.push_back({out.h_ND, dy.Rows(begin, end).Clone()});
    for (const Var& loss : out.auxiliary_losses) {
      seeds.push_back({loss, Tensor::FromHost(std::vector<double>{1}, {1}, DType::kF64, {})});
    }
    put(shard, out.h_ND.value, result->h.data());
  }
  const std::vector<Tensor> dx = tape.Backward(std::move(seeds), in);
  for (size_t i = 0; i < dx.size(); ++i) put(*shards[i], dx[i], result->dx.data());
}

Result RunOnRanks(int ranks, const Problem& problem) {
  const size_t bytes = problem.tokens() * problem.config.width * SizeOf(problem.dtype);
  Result result{std::vector<std::byte>(bytes), std::vector<std::byte>(bytes)};
  RunRanks(ranks, [&](Communicator& world) { RunTiles(problem, world, &result); });
  return result;
}

class RowTiles : public testing::TestWithParam<MixerCase> {};

TEST_P(RowTiles, OutputsAndInputGradientsHaveTheSameBitsForEachCp) {
  // Documents that end before, at and after the edges of tiles, and span some; tiles shorter than a
  // convolution, and such of several chunks.
  const ModelConfig config = ConfigOf(GetParam());
  for (const Problem& problem :
       {Problem{config, DType::kF64, RecomputePolicy::kNone, {0, 5, 8}},
        Problem{config, DType::kF32, RecomputePolicy::kMixer, {0, 36, 37, 75, 148}},
        Problem{config, DType::kF32, RecomputePolicy::kNone, {0, 99, 160, 161, 320}}}) {
    SCOPED_TRACE(StrCat(problem.tokens(), " tokens"));
    const Result one = RunOnRanks(1, problem);
    for (const int ranks : {2, 4}) {
      const Result got = RunOnRanks(ranks, problem);
      EXPECT_TRUE(got.h == one.h) << "outputs on " << ranks << " ranks";
      EXPECT_TRUE(got.dx == one.dx) << "gradients on " << ranks << " ranks";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Mixers, RowTiles, testing::ValuesIn(AllMixerCases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace lt2
