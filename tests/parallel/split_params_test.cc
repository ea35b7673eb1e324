// Parameters that ranks along tp divide, through reductions, norm, update, saving and loading:
// training is that of one rank that holds all of them.
#include <gtest/gtest.h>

#include <limits>
#include <mutex>

#include "core/strings.h"
#include "parallel/thread_communicator.h"
#include "tests/parallel/toy_run.h"

namespace lt2 {
namespace {

const std::vector<Mesh> kMeshes = {
    {.tp = 2}, {.dp = 2, .tp = 2}, {.dp = 3, .cp = 2, .tp = 2}, {.tp = 4}, {.cp = 2, .tp = 4}};

// Of each parameter by name the whole tensor, of steps by one rank; and their norms.
struct Alone {
  std::map<std::string, std::vector<double>> values;
  std::vector<double> norms;

  Alone(int tp, int steps, const MakeRule& rule) {
    const std::unique_ptr<Communicator> world = MakeGroupOfOne();
    ToyRun run(*world, {}, 0, DType::kF64, rule, {.clip = 0.05}, Specs(tp));
    for (int step = 1; step <= steps; ++step) {
      norms.push_back(run.Step(step, Toy::Uniform).grad_norm);
    }
    run.Values();
    for (const Param* param : run.toy.params) values[param->spec.name] = param->value.ToDoubles();
  }

  // Of ranks along tp, as one rank holds them.
  static std::vector<ParamSpec> Specs(int tp) {
    std::vector<ParamSpec> specs = SplitToySpecs(tp);
    for (ParamSpec& spec : specs) spec.split = {};
    return specs;
  }

  // What a rank holds, of all of it.
  void Expect(const Param& param) const {
    const std::vector<double> got = param.value.ToDoubles(), &want = values.at(param.spec.name);
    Toy::ForEachElement(param, [&](int64_t here, int64_t i) {
      ASSERT_NEAR(got[here], want[i], 1e-12) << param.spec.name << " " << i;
    });
  }
};

TEST(SplitParams, TrainLikeWholeOnes) {
  for (const MakeRule& rule : {MakeRule(Momentum), MakeRule(Adam)}) {
    for (const Mesh& mesh : kMeshes) {
      const Alone alone(mesh.tp, 4, rule);
      for (int zero : {0, 1, 2}) {
        SCOPED_TRACE(StrCat(mesh.ToString(), " zero ", zero));
        RunRanks(mesh.size(), [&](Communicator& world) {
          ToyRun run(world, mesh, zero, DType::kF64, rule, {.clip = 0.05}, SplitToySpecs(mesh.tp));
          for (int step = 1; step <= 4; ++step) {
            const StepReport report = run.Step(step, Toy::Uniform, {1.0}, {1.0 * world.rank()});
            EXPECT_NEAR(report.grad_norm, alone.norms[step - 1], 1e-12 * report.grad_norm);
            // Ranks along tp have the same tokens and sums.
            EXPECT_EQ(report.counted_tokens, 12);
            EXPECT_EQ(report.sums, (std::vector<double>{1.0 * mesh.replicas()}));
            EXPECT_EQ(report.maxes, (std::vector<double>{world.size() - 1.0}));
          }
          run.Values();
          for (const Param* param : run.toy.params) alone.Expect(*param);
        });
      }
    }
  }
}

// Whoever finds something wrong: a part that one rank alone holds, or a loss that all of them have.
TEST(SplitParams, OneRanksBadGradientSkipsTheStepEverywhere) {
  const Mesh mesh{.dp = 2, .tp = 2};
  for (const std::string bad : {"q.weight", "norm.weight", "k.weight"}) {
    RunRanks(mesh.size(), [&](Communicator& world) {
      ToyRun run(world, mesh, 1, DType::kF64, Adam, {}, SplitToySpecs(mesh.tp));
      const std::vector<double> before = run.Values();
      const StepReport report = run.Step(1, [&](const std::string& name, uint64_t stream, auto i) {
        const bool here = name == bad && stream == 103 && i == 3;
        return here ? std::numeric_limits<double>::infinity() : Toy::Uniform(name, stream, i);
      });
      EXPECT_STREQ(report.skipped, "non-finite gradient") << bad;
      EXPECT_EQ(report.nonfinite, 1) << bad;
      EXPECT_EQ(run.Values(), before);
    });
  }
}

TEST(SplitParams, LossesOfTheFirstRankAlongTpCount) {
  const Mesh mesh{.dp = 2, .tp = 2};
  RunRanks(mesh.size(), [&](Communicator& world) {
    ToyRun run(world, mesh, 0, DType::kF64, Adam, {}, SplitToySpecs(mesh.tp));
    run.reducer.BeginStep(1);
    run.toy.Backward(1, Toy::Uniform);
    run.reducer.Finish();
    StepInput input{.step = 1, .lr = 1e-3, .losses = Tensor::Zeros({2}, DType::kF64, {})};
    input.losses.data<double>()[0] = 3.0 + run.groups.dp;
    input.losses.data<double>()[1] = 10;
    input.tokens_at = 1;
    const StepReport report = run.optimizer.Step(run.stream, input);
    EXPECT_EQ(report.losses, (std::vector<double>{7, 20}));
    EXPECT_EQ(report.counted_tokens, 20);
  });
}

struct Saved {
  std::vector<StatePiece> pieces;
  OptimizerCounters counters;
};

Saved SaveAfterThreeSteps(const Mesh& mesh, int zero, const std::vector<ParamSpec>& specs) {
  Saved saved;
  std::mutex mutex;
  RunRanks(mesh.size(), [&](Communicator& world) {
    ToyRun run(world, mesh, zero, DType::kF64, Adam, {.clip = 0.05}, specs);
    for (int64_t step = 1; step <= 3; ++step) run.Step(step, Toy::Uniform);
    run.optimizer.WaitForValues();
    const std::lock_guard lock(mutex);
    saved.counters = run.optimizer.counters();
    for (StatePiece& piece : run.optimizer.Owned()) {
      piece.data = piece.data.Clone();
      saved.pieces.push_back(piece);
    }
  });
  return saved;
}

// Written by one mesh, read by another: pieces and counters are all that passes between them.
TEST(SplitParams, StateIsSavedOnceAndReadByAnyMesh) {
  const std::vector<ParamSpec> specs = SplitToySpecs(4);
  const Alone alone(4, 4, Adam);
  const std::vector<Mesh> meshes = {{.tp = 4}, {.dp = 2, .tp = 4}, {.dp = 3}};
  for (size_t from = 0; from < meshes.size(); ++from) {
    const bool whole = meshes[from].tp == 1;
    const Saved saved = SaveAfterThreeSteps(meshes[from], static_cast<int>(from) % 2,
                                            whole ? Alone::Specs(4) : specs);
    for (const ParamSpec& spec : specs) {
      std::map<std::string, std::vector<int>> seen;
      for (const StatePiece& piece : saved.pieces) {
        if (piece.name != spec.name) continue;
        std::vector<int>& times = seen.try_emplace(piece.group, spec.shape.size()).first->second;
        ForEachRun(Box::Whole(spec.shape), piece.box, [&](int64_t at, int64_t, int64_t n) {
          for (int64_t i = at; i < at + n; ++i) ++times[i];
        });
      }
      ASSERT_EQ(seen.size(), 3u) << spec.name;
      for (const auto& [group, times] : seen) {
        ASSERT_EQ(times, std::vector<int>(spec.shape.size(), 1)) << group << " " << spec.name;
      }
    }
    const Mesh& to = meshes[(from + 1) % meshes.size()];
    RunRanks(to.size(), [&](Communicator& world) {
      ToyRun run(world, to, 1, DType::kF64, Adam, {.clip = 0.05},
                 to.tp == 1 ? Alone::Specs(4) : specs);
      for (const StatePiece& held : run.optimizer.Held()) {
        held.data.Zero();
        for (const StatePiece& piece : saved.pieces) {
          if (piece.group != held.group || piece.name != held.name) continue;
          ForEachRun(held.box, piece.box, [&](int64_t at, int64_t in_piece, int64_t n) {
            std::copy_n(piece.data.data<double>() + in_piece, n, held.data.data<double>() + at);
          });
        }
      }
      run.optimizer.set_counters(saved.counters);
      run.Step(4, Toy::Uniform);
      run.Values();
      for (const Param* param : run.toy.params) alone.Expect(*param);
    });
  }
}

TEST(SplitParams, RunsDry) {
  const Mesh mesh{.dp = 2, .tp = 4};
  const RankGroups groups = MakeMetaGroups(mesh, 7);
  Stream stream{{Backend::kMeta}};
  Toy toy(SplitToySpecs(4), DType::kF32, stream.device, 4, 3);
  const LayoutTable layout = Layout(SplitToySpecs(4), mesh, 1, {}, 3);
  Reducer reducer(toy.params, layout, groups);
  Optimizer optimizer(toy.params, layout, groups, reducer, Adam(), {});
  reducer.BeginStep(1);
  for (Param* param : toy.params) param->Arrive();
  reducer.Finish();
  EXPECT_STREQ(optimizer.Step(stream, {.step = 1, .lr = 1e-3}).skipped, "");
}

}  // namespace
}  // namespace lt2
