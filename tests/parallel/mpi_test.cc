// Between processes, under mpirun: without arguments the tests; with --abort, --abort_in_split,
// --check, --truncate or --kill rank 1 ends that way while the others wait for it.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "core/strings.h"
#include "core/trace.h"
#include "parallel/adamw_rule.h"
#include "parallel/mpi_communicator.h"
#include "parallel/optimizer.h"
#include "parallel/reducer.h"
#include "parallel/thread_communicator.h"
#include "tests/parallel/collective_suite.h"
#include "tests/parallel/toy.h"

namespace lt2 {
namespace {

Communicator* world = nullptr;

void BusyFor(double seconds) {
  for (const double end = MonotonicSeconds() + seconds; MonotonicSeconds() < end;) {
  }
}

TEST(Mpi, EveryCollective) { CheckEveryCollective(*world); }

TEST(Mpi, AgreesWithTheLauncher) {
  EXPECT_EQ(world->size(), LaunchedProcesses());
  EXPECT_EQ(world->local_size(), world->size());
  EXPECT_EQ(world->local_rank(), world->rank());
}

// Three AdamW steps.
std::vector<double> ThreeSteps(Communicator& ranks, int zero) {
  Toy toy(ToySpecs(), DType::kF32);
  const Mesh mesh{.dp = ranks.size()};
  const RankGroups groups = MakeGroups(ranks, mesh);
  const LayoutTable layout = Layout(ToySpecs(), mesh, zero, {.bucket_elements = 200});
  Reducer reducer(toy.params, layout, groups);
  Optimizer optimizer(toy.params, layout, groups, reducer,
                      std::make_unique<AdamWRule>(OptimizerConfig{}), {});
  Stream stream;
  for (int step = 1; step <= 3; ++step) {
    reducer.BeginStep(1);
    toy.Backward(step * 100 + ranks.rank(), Toy::Uniform);
    reducer.Finish();
    optimizer.Step(stream, {.step = step, .lr = 1e-2, .counted_tokens = 1});
  }
  optimizer.WaitForValues();
  std::vector<double> values;
  for (const Param* param : toy.params) {
    for (double value : param->value.ToDoubles()) values.push_back(value);
  }
  return values;
}

TEST(Mpi, OptimizerStepsEqualThoseOfThreads) {
  const std::vector<double> zero1 = ThreeSteps(*world, 1), zero0 = ThreeSteps(*world, 0),
                            zero2 = ThreeSteps(*world, 2);
  std::vector<double> expected;
  RunRanks(world->size(), [&](Communicator& threads) {
    const std::vector<double> values = ThreeSteps(threads, 1);
    if (threads.rank() == 0) expected = values;
  });
  EXPECT_EQ(zero1, expected);  // to the bit: all sums are in rank order
  EXPECT_EQ(zero0, expected);
  EXPECT_EQ(zero2, expected);
}

TEST(Mpi, MostOfTheReductionTimeLiesInsideBackward) {
  std::vector<ParamSpec> specs;
  for (int p = 0; p < 12; ++p) specs.push_back({.name = StrCat("p", p), .shape = {256, 1024}});
  for (int zero : {0, 1, 2}) {
    Toy toy(specs, DType::kF32);
    const Mesh mesh{.dp = world->size()};
    const RankGroups groups = MakeGroups(*world, mesh);
    const LayoutTable layout = Layout(specs, mesh, zero, {.bucket_elements = 1 << 18});
    ASSERT_EQ(layout.buckets.size(), 12u);
    Reducer reducer(toy.params, layout, groups);
    double begin = 0, end = 0;
    for (int step = 0; step < 2; ++step) {  // the first one warms up
      world->Barrier();
      EnableTrace(true);
      reducer.BeginStep(1);
      begin = MonotonicSeconds();
      for (auto it = toy.params.rbegin(); it != toy.params.rend(); ++it) {
        BusyFor(10e-3);
        (*it)->Need();
        (*it)->Arrive();
      }
      BusyFor(10e-3);  // what comes before the first parameter's use
      end = MonotonicSeconds();
      reducer.Finish();
    }
    double inside = 0, all = 0;
    for (const TraceEvent& event : TraceEvents()) {
      if (std::string(event.name) != "reduce_gradients" || event.begin < begin) continue;
      all += event.end - event.begin;
      inside += std::max(0.0, std::min(event.end, end) - std::max(event.begin, begin));
    }
    EnableTrace(false);
    EXPECT_GT(all, 0);
    EXPECT_GT(inside, 0.5 * all) << "zero " << zero << ": " << inside << " of " << all << " s";
    if (world->rank() == 0)
      std::printf("zero %d: %.1f of %.1f ms\n", zero, inside * 1e3, all * 1e3);
  }
}

TEST(Mpi, WaitingLeavesTheCoreAlone) {
  // While this rank waits for another one its communication thread sleeps most of the time.
  const auto cpu_seconds = [] {
    timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
  };
  world->Barrier();
  if (world->rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(500));
  const double before = cpu_seconds();
  world->Barrier();
  EXPECT_TRUE(world->rank() == 0 || cpu_seconds() - before < 0.2) << cpu_seconds() - before;
}

// Rank 1 ends in the way asked for while the others wait for it, for ever if nobody ends them.
void EndBadly(const std::string& mode) {
  if (world->rank() == 1) {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    if (mode == "--abort") world->Abort(7);
    if (mode == "--abort_in_split") {
      // The communication thread is stuck in a collective that nobody else will join.
      std::thread([] { world->Split(0, 0, "stuck"); }).detach();
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      world->Abort(7);
    }
    if (mode == "--check") CHECK(false) << "a programmer's error";
    if (mode == "--truncate") {  // rank 0 sends more than there is room for
      world->Receive(Tensor::Zeros({4}, DType::kF32, {}), 0, "short_receive");
    }
    if (mode == "--kill") kill(getpid(), SIGKILL);
  }
  if (mode == "--truncate" && world->rank() == 0) {
    world->Send(Tensor::Zeros({8}, DType::kF32, {}), 1);
  }
  world->Barrier("for_ever");
}

}  // namespace
}  // namespace lt2

int main(int argc, char** argv) {
  auto world = lt2::StartWorld();
  if (!world.ok()) {
    std::fprintf(stderr, "%s\n", world.status().ToString().c_str());
    return 1;
  }
  lt2::world = world->get();
  if (argc > 1 && argv[1][0] == '-' && std::string(argv[1]).rfind("--gtest", 0) != 0) {
    lt2::EndBadly(argv[1]);
    return 0;
  }
  testing::InitGoogleTest(&argc, argv);
  const int failed = RUN_ALL_TESTS();
  // All ranks fail together: one that went on alone would wait for the others in MPI_Finalize.
  if (failed) lt2::world->Abort(1);
  return 0;
}
