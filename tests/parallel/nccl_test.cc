// Between processes with a GPU each, under mpirun: without arguments the tests; with --abort,
// --check or --kill rank 1 ends that way while the GPUs of the others wait for it. Ends with code
// 77 where there are fewer GPUs than ranks.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <numeric>
#include <thread>

#include "core/cuda.h"
#include "core/cuda/check.h"
#include "core/philox.h"
#include "core/strings.h"
#include "core/trace.h"
#include "kernels/gemm.h"
#include "parallel/adamw_rule.h"
#include "parallel/gpus.h"
#include "parallel/mpi_communicator.h"
#include "parallel/nccl_communicator.h"
#include "parallel/optimizer.h"
#include "parallel/reducer.h"
#include "parallel/thread_communicator.h"
#include "tests/parallel/collective_suite.h"
#include "tests/parallel/toy.h"

namespace lt2 {
namespace {

Communicator* world = nullptr;
Device gpu;

Tensor Random(int64_t size, uint64_t stream) {
  std::vector<double> values(size);
  for (int64_t i = 0; i < size; ++i) values[i] = 2 * OpenUniform(Philox(7, i, stream)[0]) - 1;
  return Tensor::FromHost(values, {size}, DType::kF32, gpu);
}

TEST(Nccl, EveryCollective) { CheckEveryCollective(*world, gpu); }

TEST(Nccl, HostTensorsGoTheOtherWay) { CheckEveryCollective(*world); }

TEST(Nccl, EachRankHasAGpuToItself) {
  EXPECT_EQ(gpu.index, world->local_rank() % cuda::DeviceCount());
  std::vector<std::string> gpus = world->GatherStrings(cuda::Identity(gpu.index));
  std::sort(gpus.begin(), gpus.end());
  EXPECT_EQ(std::adjacent_find(gpus.begin(), gpus.end()), gpus.end());
}

TEST(Nccl, SumsRepeatBitForBit) {
  for (int64_t size : {int64_t{1000}, int64_t{300001}, int64_t{1} << 22}) {
    const Tensor mine = Random(size, world->rank());
    std::vector<double> first, exact(size);
    for (int r = 0; r < world->size(); ++r) {
      const std::vector<double> theirs = Random(size, r).ToDoubles();
      for (int64_t i = 0; i < size; ++i) exact[i] += theirs[i];
    }
    for (int run = 0; run < 3; ++run) {
      const Tensor x = mine.Clone();
      world->AllReduce(x, Reduction::kSum);
      const std::vector<double> sum = x.ToDoubles();
      if (run == 0) first = sum;
      ASSERT_EQ(sum, first);
    }
    for (int64_t i = 0; i < size; ++i) ASSERT_NEAR(first[i], exact[i], 1e-6 * world->size());
  }
}

// What the thread queues before and after is ordered with a collective, though nobody waits on the
// host: a wrong order shows, as every copy takes longer than its launch.
TEST(Nccl, IsOrderedWithTheThreadsWork) {
  constexpr int64_t kSize = int64_t{1} << 25;
  const Tensor source = Random(kSize, world->rank());
  const Tensor x = Tensor::Zeros({kSize}, DType::kF32, gpu);
  std::vector<Tensor> results;
  for (int run = 0; run < 8; ++run) {
    x.CopyFrom(source);
    const Pending pending = world->AllReduceAsync(x, Reduction::kSum);
    pending.Wait();
    results.push_back(x.Clone());
    x.Zero();
  }
  const std::vector<double> first = results[0].Flat(kSize - 1000, 1000).ToDoubles();
  double sum = 0;
  for (double value : first) sum += std::abs(value);
  EXPECT_GT(sum, 1);
  for (const Tensor& result : results) {
    EXPECT_EQ(result.Flat(kSize - 1000, 1000).ToDoubles(), first);
  }
}

// A group's collectives as part of a CUDA graph give what they give without one.
TEST(Nccl, RunsInAGraph) {
  const int ranks = world->size();
  const int64_t each = 1000, size = each * ranks;
  const std::vector<int64_t> counts(ranks, each);
  const Tensor x = Random(size, world->rank()), y = x.Clone(), z = x.Clone();
  const auto collectives = [&] {
    y.CopyFrom(x);
    z.CopyFrom(x);
    const Pending first = world->AllReduceAsync(y, Reduction::kSum);
    const Pending second = world->ReduceScatterAsync(z, counts, Reduction::kSum);
    second.Wait();
    const Pending third = world->AllGatherAsync(z, counts);
    first.Wait();
    third.Wait();
  };
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  collectives();
  cuda::Synchronize();
  LT2_CUDA_CHECK(cudaStreamBeginCapture(cudaStreamPerThread, cudaStreamCaptureModeThreadLocal));
  collectives();
  LT2_CUDA_CHECK(cudaStreamEndCapture(cudaStreamPerThread, &graph));
  LT2_CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
  for (int run = 0; run < 5; ++run) {
    x.CopyFrom(Random(size, 10 * run + world->rank()));
    collectives();
    const std::vector<double> sums = y.ToDoubles(), gathered = z.ToDoubles();
    y.Zero();
    z.Zero();
    LT2_CUDA_CHECK(cudaGraphLaunch(exec, cudaStreamPerThread));
    EXPECT_EQ(y.ToDoubles(), sums);
    EXPECT_EQ(z.ToDoubles(), gathered);
  }
  LT2_CUDA_CHECK(cudaGraphExecDestroy(exec));
  LT2_CUDA_CHECK(cudaGraphDestroy(graph));
}

// Three AdamW steps.
std::vector<double> ThreeSteps(Communicator& ranks, int zero, Device device) {
  const std::vector<ParamSpec> specs = ToySpecs();
  Toy toy(specs, DType::kF32, device);
  for (Param* param : toy.params) {
    if (device.backend == Backend::kCpu) continue;
    const Param host(param->spec, DType::kF32, {});
    Toy::Fill(host);
    param->master.CopyFrom(host.value);
  }
  const Mesh mesh{.dp = ranks.size()};
  const RankGroups groups = MakeGroups(ranks, mesh);
  const LayoutTable layout = Layout(specs, mesh, zero, {.bucket_elements = 200});
  Reducer reducer(toy.params, layout, groups);
  Optimizer optimizer(toy.params, layout, groups, reducer,
                      std::make_unique<AdamWRule>(OptimizerConfig{}), {});
  Stream stream{.device = device};
  for (int step = 1; step <= 3; ++step) {
    reducer.BeginStep(1);
    for (auto it = toy.params.rbegin(); it != toy.params.rend(); ++it) {
      std::vector<double> gradient((*it)->master.size());
      for (size_t i = 0; i < gradient.size(); ++i) {
        gradient[i] = Toy::Uniform((*it)->spec.name, step * 100 + ranks.rank(), i);
      }
      (*it)->Need();
      (*it)->main_grad.CopyFrom(
          Tensor::FromHost(gradient, (*it)->spec.shape, DType::kF32, {Backend::kCpu}));
      (*it)->Arrive();
    }
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

TEST(Nccl, OptimizerStepsAreThoseOfTheCpu) {
  const std::vector<double> zero1 = ThreeSteps(*world, 1, gpu), zero0 = ThreeSteps(*world, 0, gpu);
  EXPECT_EQ(ThreeSteps(*world, 2, gpu), zero1);
  std::vector<double> expected;
  RunRanks(world->size(), [&](Communicator& threads) {
    const std::vector<double> values = ThreeSteps(threads, 1, {});
    if (threads.rank() == 0) expected = values;
  });
  ASSERT_EQ(zero1.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_NEAR(zero1[i], expected[i], 2e-5 * std::abs(expected[i]) + 1e-6) << i;
    ASSERT_NEAR(zero0[i], zero1[i], 1e-6) << i;
  }
  if (world->size() > 2) return;
  EXPECT_EQ(zero0, zero1);  // a sum of two has but one order
}

// Steps whose halves are recorded and repeated: values are gathered at the beginning of the next.
std::vector<double> StepsInGraphs(bool graphs, int zero) {
  const std::vector<ParamSpec> specs = ToySpecs();
  Toy toy(specs, DType::kF32, gpu);
  std::vector<Tensor> gradients;
  for (Param* param : toy.params) {
    param->master.CopyFrom(Random(param->master.size(), 1));
    gradients.push_back(param->master.Clone());
  }
  const Mesh mesh{.dp = world->size()};
  const RankGroups groups = MakeGroups(*world, mesh);
  const LayoutTable layout = Layout(specs, mesh, zero, {.bucket_elements = 200});
  Reducer reducer(toy.params, layout, groups);
  Optimizer optimizer(toy.params, layout, groups, reducer,
                      std::make_unique<AdamWRule>(OptimizerConfig{}), {});
  Stream stream{.device = gpu};
  const MemoryPool pool(gpu);
  const auto backward = [&](bool again) {
    const PoolScope scope(&pool);
    optimizer.GatherValues(again);
    reducer.BeginStep(1);
    for (int p = static_cast<int>(specs.size()) - 1; p >= 0; --p) {
      optimizer.WaitForValues(static_cast<int>(specs.size()) - p);
      toy.params[p]->Need();
      toy.params[p]->main_grad.CopyFrom(gradients[p]);
      toy.params[p]->Arrive();
    }
    reducer.Finish();
  };
  cuda::Graph first, second;
  for (int step = 1; step <= 5; ++step) {
    for (size_t p = 0; p < gradients.size(); ++p) {
      gradients[p].CopyFrom(Random(gradients[p].size(), 1000 * world->rank() + 10 * step + p));
    }
    const bool record = graphs && step == 2;
    if (record) first.BeginCapture();
    if (!first.captured()) backward(record);
    if (record) first.EndCapture();
    if (first.captured()) first.Launch();
    optimizer.Gathered();
    optimizer.Prepare({.step = step, .lr = 1e-2, .counted_tokens = 1});
    if (record) second.BeginCapture();
    if (!second.captured()) optimizer.Update(stream, /*gather=*/false);
    if (record) second.EndCapture();
    if (second.captured()) second.Launch();
    optimizer.Updated(/*gather=*/false);
    EXPECT_EQ(optimizer.Report().skipped, std::string());
  }
  optimizer.WaitForValues();
  std::vector<double> values;
  for (const Param* param : toy.params) {
    for (double value : param->value.ToDoubles()) values.push_back(value);
  }
  return values;
}

TEST(Nccl, StepsInGraphsAreThoseWithout) {
  for (int zero : {0, 1, 2}) {
    const std::vector<double> direct = StepsInGraphs(false, zero);
    EXPECT_EQ(StepsInGraphs(true, zero), direct) << zero;
    const std::vector<std::string> everyone =
        world->GatherStrings(StrCat(std::accumulate(direct.begin(), direct.end(), 0.0)));
    for (const std::string& theirs : everyone) EXPECT_EQ(theirs, everyone[0]) << zero;
  }
}

// A reduction waits for what was queued before it, and for nothing behind it.
TEST(Nccl, ReducesWhileKernelsRun) {
  if (world->size() == 1) GTEST_SKIP() << "a group of one has nothing to reduce";
  const int64_t edge = 4096;
  const Tensor a = Tensor::Zeros({edge, edge}, DType::kBF16, gpu), b = a.Clone(), c = a.Clone();
  const Tensor bucket = Tensor::Zeros({1 << 20}, DType::kF32, gpu);
  Stream stream{.device = gpu};
  for (int run = 0; run < 2; ++run) {  // the first one warms up
    WaitFor(stream);
    world->Barrier();
    const double begun = MonotonicSeconds();
    const Pending pending = world->AllReduceAsync(bucket, Reduction::kSum);
    for (int i = 0; i < 64; ++i) Gemm(stream, {.a = a, .b = b, .c = c});
    while (!pending.done()) std::this_thread::yield();
    const double reduced = MonotonicSeconds() - begun;
    pending.Wait();
    WaitFor(stream);
    const double computed = MonotonicSeconds() - begun;
    if (run > 0) EXPECT_LT(reduced, 0.5 * computed);
  }
}

// Rank 1 ends in the way asked for while the others' GPUs wait for it.
void EndBadly(const std::string& mode) {
  const Tensor x = Random(1 << 20, 0);
  world->AllReduce(x, Reduction::kSum);
  cuda::Synchronize();
  world->Barrier();
  if (world->rank() == 1) {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    if (mode == "--abort") world->Abort(7);
    if (mode == "--check") CHECK(false) << "a programmer's error";
    if (mode == "--kill") kill(getpid(), SIGKILL);
  }
  world->AllReduce(x, Reduction::kSum, "for_ever");
  cuda::Synchronize();
}

}  // namespace
}  // namespace lt2

int main(int argc, char** argv) {
  using namespace lt2;
  auto started = StartWorld();
  CHECK(started.ok()) << started.status();
  const absl::StatusOr<Device> device = ClaimGpu(**started);
  if (!device.ok() || !NcclStatus().ok()) {
    if ((*started)->rank() == 0) {
      std::printf("skipped: %s\n",
                  (device.ok() ? NcclStatus() : device.status()).ToString().c_str());
    }
    return 77;
  }
  gpu = *device;
  const std::unique_ptr<Communicator> made = MakeNcclCommunicator(*std::move(started), gpu);
  world = made.get();
  if (argc > 1 && !std::string(argv[1]).starts_with("--gtest")) {
    EndBadly(argv[1]);
    return 0;
  }
  testing::InitGoogleTest(&argc, argv);
  const int failed = RUN_ALL_TESTS();
  if (failed) world->Abort(1);  // the others may wait for this rank
  return 0;
}
