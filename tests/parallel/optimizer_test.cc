#include "parallel/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <mutex>

#include "core/allocator.h"
#include "kernels/elementwise.h"
#include "parallel/adamw_rule.h"
#include "parallel/reducer.h"
#include "parallel/thread_communicator.h"
#include "tests/parallel/toy_run.h"

namespace lt2 {
namespace {

struct Outcome {
  std::vector<double> values, norms;
};

Outcome FiveSteps(int ranks, int zero, DType dtype, const MakeRule& make,
                  double (*gradient)(const std::string&, uint64_t, uint64_t)) {
  Outcome outcome;
  std::vector<double> first_norms(ranks);
  RunRanks(ranks, [&](Communicator& world) {
    ToyRun run(world, {.dp = world.size()}, zero, dtype, make);
    std::vector<double> norms;
    for (int64_t step = 1; step <= 5; ++step) norms.push_back(run.Step(step, gradient).grad_norm);
    const std::vector<double> values = run.Values();
    first_norms[world.rank()] = norms[0];
    // Every rank ends with the same bits.
    std::string bits(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(double));
    for (const std::string& other : world.GatherStrings(bits)) EXPECT_EQ(other, bits);
    if (world.rank() == 0) outcome = {values, norms};
  });
  for (double norm : first_norms) EXPECT_EQ(norm, first_norms[0]);
  return outcome;
}

void ExpectNear(const std::vector<double>& a, const std::vector<double>& b, double tolerance) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], tolerance * (1 + std::abs(b[i])));
}

TEST(Optimizer, AnyNumberOfRanksIsOneRank) {
  for (const MakeRule& rule : {MakeRule(Momentum), MakeRule(Adam)}) {
    const Outcome one = FiveSteps(1, 0, DType::kF64, rule, Toy::Uniform);
    for (int ranks = 1; ranks <= 4; ++ranks) {
      const Outcome zero0 = FiveSteps(ranks, 0, DType::kF64, rule, Toy::Uniform);
      const Outcome zero1 = FiveSteps(ranks, 1, DType::kF64, rule, Toy::Uniform);
      EXPECT_EQ(zero0.values, zero1.values) << ranks;
      EXPECT_EQ(zero0.norms, zero1.norms) << ranks;
      const Outcome zero2 = FiveSteps(ranks, 2, DType::kF64, rule, Toy::Uniform);
      ExpectNear(zero2.values, one.values, 1e-12);  // micro-batches are added in another order
      ExpectNear(zero2.norms, one.norms, 1e-12);
      ExpectNear(zero0.values, one.values, 1e-12);
      ExpectNear(zero0.norms, one.norms, 1e-12);
    }
  }
}

TEST(Optimizer, ExactGradientsGiveTheSameBitsOnEveryMesh) {
  // Without clipping nothing depends on the order of sums: integers add up exactly in float32.
  for (const MakeRule& rule : {MakeRule(Momentum), MakeRule(Adam)}) {
    std::vector<double> expected;
    for (int ranks = 1; ranks <= 4; ++ranks) {
      for (int zero : {0, 1, 2}) {
        RunRanks(ranks, [&](Communicator& world) {
          ToyRun run(world, {.dp = world.size()}, zero, DType::kF32, rule, {.clip = 0});
          for (int64_t step = 1; step <= 5; ++step) run.Step(step, Toy::Integer);
          const std::vector<double> values = run.Values();
          if (world.rank() > 0) return;
          if (expected.empty()) expected = values;
          EXPECT_EQ(values, expected) << ranks << " ranks, zero " << zero;
        });
      }
    }
  }
}

TEST(Optimizer, TheNormIsThatOfTheMeanGradientAndClips) {
  for (int ranks : {1, 3}) {
    for (int zero : {0, 1, 2}) {
      RunRanks(ranks, [&](Communicator& world) {
        ToyRun run(world, {.dp = world.size()}, zero, DType::kF64, Momentum, {.clip = 0.25});
        const StepReport report = run.Step(1, Toy::Integer);
        double square = 0;
        for (const Param* param : run.toy.params) {
          for (int64_t i = 0; i < param->value.size(); ++i) {
            double sum = 0;
            for (int sample = 0; sample < 12; ++sample) {
              sum += Toy::Integer(param->spec.name, 100 + sample, i);
            }
            square += sum * sum;
          }
        }
        EXPECT_NEAR(report.grad_norm, std::sqrt(square) / 12, 1e-12 * report.grad_norm);
        EXPECT_EQ(report.counted_tokens, 12);
        EXPECT_DOUBLE_EQ(report.clip_factor, 0.25 / (report.grad_norm + 1e-6));
      });
    }
  }
}

TEST(Optimizer, DecayFollowsTheSpecUnlessAllDecay) {
  const auto none = [](const std::string&, uint64_t, uint64_t) { return 0.0; };
  for (bool all : {false, true}) {
    for (const MakeRule& rule : {MakeRule(Momentum), MakeRule(Adam)}) {
      RunRanks(2, [&](Communicator& world) {
        ToyRun run(world, {.dp = world.size()}, 1, DType::kF64, rule, {.decay_all = all});
        const std::vector<double> before = run.Values();
        run.Step(1, none);
        const std::vector<double> after = run.Values();
        size_t at = 0;
        for (const Param* param : run.toy.params) {
          const double factor = param->spec.decay || all ? 1 - 1e-2 * 0.1 : 1;
          for (int64_t i = 0; i < param->value.size(); ++i, ++at) {
            ASSERT_NEAR(after[at], before[at] * factor, 1e-15) << param->spec.name;
          }
        }
      });
    }
  }
}

TEST(Optimizer, ABadGradientAnywhereSkipsTheStepEverywhere) {
  const auto bad = [](const std::string& name, uint64_t stream, uint64_t i) {
    const bool here = name == "conv.weight" && stream == 211 && i == 7;  // the last rank's last
    return here ? std::numeric_limits<double>::quiet_NaN() : Toy::Uniform(name, stream, i);
  };
  for (int zero : {0, 1, 2}) {
    RunRanks(3, [&](Communicator& world) {
      ToyRun run(world, {.dp = world.size()}, zero, DType::kF64, Adam, {.skip_limit = 2});
      run.Step(1, Toy::Uniform);
      const std::vector<double> before = run.Values();
      const std::vector<StatePiece> held = run.optimizer.Held();
      std::vector<std::vector<double>> states;
      for (const StatePiece& piece : held) states.push_back(piece.data.ToDoubles());
      const StepReport report = run.Step(2, bad);
      EXPECT_STREQ(report.skipped, "non-finite gradient");
      EXPECT_EQ(report.nonfinite, 1);
      EXPECT_TRUE(std::isnan(report.grad_norm));
      EXPECT_EQ(run.Values(), before);
      for (size_t i = 0; i < held.size(); ++i) EXPECT_EQ(held[i].data.ToDoubles(), states[i]);
      EXPECT_EQ(run.optimizer.counters().skipped_in_row, 1);
      EXPECT_FALSE(run.optimizer.TooManySkips());
      run.Step(2, bad);
      EXPECT_TRUE(run.optimizer.TooManySkips());
      EXPECT_STREQ(run.Step(3, Toy::Uniform).skipped, "");
      EXPECT_EQ(run.optimizer.counters().skipped_in_row, 0);
      EXPECT_EQ(run.optimizer.counters().skipped, 2);
      EXPECT_NE(run.Values(), before);
    });
  }
}

TEST(Optimizer, ASpikeIsSkippedAndTheRuleSurvivesResume) {
  RunRanks(2, [](Communicator& world) {
    const OptimizerConfig config{.clip = 1, .spike_z = 6};
    ToyRun run(world, {.dp = world.size()}, 1, DType::kF64, Momentum, config);
    const auto spike = [](const std::string& name, uint64_t stream, uint64_t i) {
      return 50 * Toy::Uniform(name, stream, i);
    };
    int64_t step = 1;
    for (; step <= 25; ++step) EXPECT_STREQ(run.Step(step, Toy::Uniform).skipped, "") << step;
    EXPECT_STREQ(run.Step(step, spike).skipped, "norm spike");

    ToyRun resumed(world, {.dp = 2}, 1, DType::kF64, Momentum, config);
    EXPECT_STREQ(resumed.Step(step, spike).skipped, "");  // nothing to compare with yet
    resumed.optimizer.set_counters(run.optimizer.counters());
    EXPECT_STREQ(resumed.Step(step, spike).skipped, "norm spike");
    EXPECT_STREQ(resumed.Step(step, Toy::Uniform).skipped, "");
  });
}

TEST(Optimizer, OtherScalarsRideAlong) {
  RunRanks(3, [](Communicator& world) {
    ToyRun run(world, {.dp = world.size()}, 1, DType::kF64, Momentum);
    const double rank = world.rank();
    const StepReport report = run.Step(1, Toy::Uniform, {rank, 0.5}, {-rank, 10 * rank});
    EXPECT_EQ(report.sums, (std::vector<double>{3, 1.5}));
    EXPECT_EQ(report.maxes, (std::vector<double>{0, 20}));
  });
}

TEST(Optimizer, OwnedPiecesTileTheStateAndHeldOnesRestoreIt) {
  // Written by three ranks, read by two: pieces and counters are all that passes between them.
  for (int zero : {0, 1, 2}) {
    std::mutex mutex;
    std::vector<StatePiece> saved;
    std::vector<double> expected;
    OptimizerCounters counters;
    RunRanks(3, [&](Communicator& world) {
      ToyRun run(world, {.dp = world.size()}, zero, DType::kF64, Adam);
      for (int64_t step = 1; step <= 3; ++step) run.Step(step, Toy::Integer);
      run.optimizer.WaitForValues();
      {
        std::lock_guard lock(mutex);
        counters = run.optimizer.counters();
        for (StatePiece& piece : run.optimizer.Owned()) {
          piece.data = piece.data.Clone();
          saved.push_back(piece);
        }
      }
      run.Step(4, Toy::Integer);
      const std::vector<double> values = run.Values();
      if (world.rank() == 0) expected = values;
    });
    int64_t elements = 0;
    for (const ParamSpec& spec : ToySpecs()) elements += 3 * spec.shape.size();
    for (const StatePiece& piece : saved) elements -= piece.box.size();
    EXPECT_EQ(elements, 0);

    RunRanks(2, [&](Communicator& world) {
      ToyRun run(world, {.dp = world.size()}, 2 - zero, DType::kF64, Adam);
      for (const StatePiece& held : run.optimizer.Held()) {
        held.data.Zero();
        for (const StatePiece& piece : saved) {
          if (piece.group != held.group || piece.name != held.name) continue;
          ForEachRun(held.box, piece.box, [&](int64_t to, int64_t from, int64_t n) {
            std::copy_n(piece.data.data<double>() + from, n, held.data.data<double>() + to);
          });
        }
      }
      run.optimizer.set_counters(counters);
      run.Step(4, Toy::Integer);
      ExpectNear(run.Values(), expected, 1e-13);
    });
  }
}

// Gathered in parts and later, beside a forward, values are those that Step gathers.
TEST(Optimizer, ValuesMayBeGatheredInParts) {
  for (int zero : {0, 1, 2}) {
    for (int ranks : {1, 3}) {
      RunRanks(ranks, [&](Communicator& world) {
        const Mesh mesh{.dp = world.size()};
        ToyRun at_once(world, mesh, zero, DType::kF64, Adam);
        ToyRun later(world, mesh, zero, DType::kF64, Adam);
        Optimizer& optimizer = later.optimizer;
        EXPECT_EQ(optimizer.Gathers(), zero > 0 && ranks > 1);
        for (int step = 1; step <= 3; ++step) {
          at_once.Step(step, Toy::Uniform);
          later.Step(step, Toy::Uniform, {}, {}, /*gather=*/false);
          if (step == 1) optimizer.GatherValues();  // else with the first wait for everything
          if (step == 2) optimizer.GatherValues(/*again=*/true);
          for (int end : {1, 3, 1000}) {
            if (step < 3) optimizer.WaitForValues(end);
          }
          EXPECT_EQ(later.Values(), at_once.Values()) << step;
        }
        // A repetition of what was gathered changes nothing.
        optimizer.GatherValues(/*again=*/true);
        optimizer.WaitForValues(1000);
        EXPECT_EQ(later.Values(), at_once.Values());
      });
    }
  }
}

// What products read is what the masters round to, after updates, skips and loads, on every rank.
TEST(Optimizer, RoundedValuesFollowTheirMasters) {
  for (int zero : {0, 1, 2}) {
    for (int ranks : {1, 3}) {
      RunRanks(ranks, [&](Communicator& world) {
        Stream stream;
        Toy toy(ToySpecs(), DType::kF32);
        for (Param* param : toy.params) {
          const Tensor master = param->master;
          if (param->spec.shape.rank() < 2) continue;
          param->BindValue(Tensor::Zeros(param->spec.shape, DType::kBF16, stream.device));
          param->BindMaster(master);
        }
        const LayoutTable layout = Layout(ToySpecs(), {.dp = ranks}, zero, kSmallBuckets);
        const RankGroups groups = MakeGroups(world, {.dp = ranks});
        Reducer reducer(toy.params, layout, groups);
        Optimizer optimizer(toy.params, layout, groups, reducer, Adam(), {});
        const auto expect_rounded = [&](const char* when) {
          optimizer.WaitForValues();
          for (const Param* param : toy.params) {
            if (param->value.dtype() != DType::kBF16) continue;
            for (int64_t i = 0; i < param->value.size(); ++i) {
              const float value = param->value.data<BFloat16>()[i];
              const float rounded = BFloat16::Of(param->master.data<float>()[i]);
              ASSERT_EQ(value, rounded) << when << " " << param->spec.name << " " << i;
            }
          }
        };
        expect_rounded("at first");
        for (int step = 1; step <= 3; ++step) {
          reducer.BeginStep(1);
          for (auto it = toy.params.rbegin(); it != toy.params.rend(); ++it) {
            Param& param = **it;
            param.Need();
            for (float& g : param.main_grad.span<float>()) g = step == 2 ? NAN : 0.01f * step;
            param.Arrive();
          }
          reducer.Finish();
          const StepReport report =
              optimizer.Step(stream, {.step = step, .lr = 0.1, .counted_tokens = 1});
          EXPECT_EQ(report.skipped, std::string(step == 2 ? "non-finite gradient" : ""));
          expect_rounded("after a step");
        }
        for (const StatePiece& piece : optimizer.Held()) {
          if (piece.group == "param") Fill(stream, piece.data, 0.3);
        }
        expect_rounded("after loading");
        EXPECT_EQ(toy.params[0]->master.data<float>()[5], 0.3f);
      });
    }
  }
}

TEST(Optimizer, SteadyStateAllocatesNothing) {
  for (int zero : {1, 2}) {
    RunRanks(2, [zero](Communicator& world) {
      const MemoryPool pool({Backend::kCpu});
      const PoolScope scope(&pool);
      ToyRun run(world, {.dp = world.size()}, zero, DType::kF32, Adam);
      run.Step(1, Toy::Uniform);
      const int64_t before = pool.stats().growths;
      for (int64_t step = 2; step < 10; ++step) run.Step(step, Toy::Uniform);
      EXPECT_EQ(pool.stats().growths, before);
    });
  }
}

TEST(Optimizer, RunsDry) {
  MetaMeter meter;
  Stream stream{{Backend::kMeta}};
  const RankGroups groups = MakeMetaGroups({.dp = 4}, 1);
  Toy toy(ToySpecs(), DType::kF32, stream.device);
  const int64_t values = meter.memory().live;
  const LayoutTable layout = Layout(ToySpecs(), {.dp = 4}, 1);
  Reducer reducer(toy.params, layout, groups);
  Optimizer optimizer(toy.params, layout, groups, reducer, Adam(), {});
  reducer.BeginStep(1);
  for (Param* param : toy.params) param->Arrive();
  reducer.Finish();
  EXPECT_TRUE(optimizer.Step(stream, {.step = 1, .lr = 1e-3}).skipped == std::string());
  EXPECT_GT(meter.flops(), 0);
  // Gradients beside values, and a quarter of two moments.
  EXPECT_NEAR(static_cast<double>(meter.memory().live), 2.5 * static_cast<double>(values),
              0.35 * static_cast<double>(values));
}

TEST(OptimizerDeathTest, ARuleThatNeedsWholeParametersGetsThem) {
  const auto whole = [] { return std::make_unique<MomentumRule>(0.1, true); };
  EXPECT_DEATH(
      RunRanks(3, [&](Communicator& world) { ToyRun(world, {.dp = 3}, 1, DType::kF32, whole); }),
      "needs LayoutOptions::whole_parameters");
}

}  // namespace
}  // namespace lt2
