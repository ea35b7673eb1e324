// Ranks with a GPU each that share a row, or a pipeline, under mpirun: training is the same as on
// one GPU (tests/launch/parity.h), and a step recorded once and repeated with other documents has
// the bits of one that is not. Ends with code 77 where there are fewer GPUs than ranks.
#include <gtest/gtest.h>

#include <cstdio>

#include "core/hash.h"
#include "core/strings.h"
#include "parallel/gpus.h"
#include "parallel/mpi_communicator.h"
#include "parallel/nccl_communicator.h"
#include "tests/launch/parity.h"
#include "tests/launch/training.h"
#include "tests/model/mixer_cases.h"

namespace lt2 {
namespace {

Communicator* world = nullptr;
const RankGroups* groups = nullptr;  // that share a row
const RankGroups* stages = nullptr;
Device gpu;

// As runs have it (launch/environment.h).
void PutOnGpu(StepOptions& options, DType dtype) {
  options.device = gpu;
  options.dtype = dtype;
  options.rebuild = dtype == DType::kBF16 ? Rebuild::kCheap : Rebuild::kNothing;
}

Mesh CpMesh() { return {.cp = world->size()}; }
Mesh PpMesh() { return {.pp = world->size()}; }

void HoldToOneGpu(const MeshCase& mesh, const RankGroups& in, const MixerCase& mixer_case,
                  DType dtype) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    const Problem problem =
        RandomProblem(ConfigOf(mixer_case).vocab, mesh.mesh, Hash64(StrCat(mixer_case.name, seed)));
    SCOPED_TRACE(StrCat(mesh.name, ", seed ", seed, ": ", problem.ToString()));
    StepOptions options = OptionsOf(ConfigOf(mixer_case, problem.model), problem, mesh);
    const Trace exact = TrainAlone(options, problem);
    PutOnGpu(options, dtype);
    const Rounded rounded = TrainRounded(options, problem);
    TrainAsRank(in, mesh, options, problem, rounded.want, Allowed(dtype, rounded, exact));
  }
}

// No test may end early: the other ranks would wait for this one.
class GpuParity
    : public testing::TestWithParam<std::tuple<MixerCase, DType, int /*zero*/, StateExchange>> {};

TEST_P(GpuParity, TrainsAsOneGpuDoes) {
  const auto& [mixer_case, dtype, zero, exchange] = GetParam();
  HoldToOneGpu({.name = "cp", .mesh = CpMesh(), .zero = zero, .exchange = exchange}, *groups,
               mixer_case, dtype);
}

TEST_P(GpuParity, StagesTrainAsOneGpuDoes) {
  const auto& [mixer_case, dtype, zero, exchange] = GetParam();
  const bool drains = exchange == StateExchange::kChain;
  HoldToOneGpu({.name = "pp",
                .mesh = PpMesh(),
                .zero = zero,
                .pipeline = drains ? Pipeline::kRingZb : Pipeline::kRing},
               *stages, mixer_case, dtype);
}

TEST_P(GpuParity, RepeatedStepsHaveTheBitsOfStepsThatAreNotRecorded) {
  const auto& [mixer_case, dtype, zero, exchange] = GetParam();
  constexpr int64_t kSteps = 8;
  StepOptions options{.model = ConfigOf(mixer_case),
                      .zero = zero,
                      .state_exchange = exchange,
                      .sequence = 301,
                      .micro_batches = 2,
                      .max_documents = 9};
  PutOnGpu(options, dtype);
  std::vector<StepReport> reports;
  std::vector<std::vector<double>> state;
  for (const bool graphs : {false, true}) {
    options.graphs = graphs;
    Training training(options, CpMesh(), *groups);
    for (int64_t number = 1; number <= kSteps; ++number) {
      SCOPED_TRACE(number);
      const StepReport report = training.Step(number);
      if (!graphs) {
        reports.push_back(report);
      } else {
        ExpectSame(report, reports[number - 1]);
      }
    }
    if (!graphs) {
      state = training.State();
    } else {
      EXPECT_EQ(training.State(), state);
    }
  }
}

std::string NameOf(const testing::TestParamInfo<GpuParity::ParamType>& info) {
  const auto& [mixer_case, dtype, zero, exchange] = info.param;
  return StrCat(mixer_case.name, "_", Name(dtype), "_zero", zero,
                exchange == StateExchange::kChain ? "_chain" : "");
}

// Where rounding decides which keys are read, bfloat16 trains another way.
std::vector<MixerCase> CasesWithoutChoices() {
  std::vector<MixerCase> cases = AllMixerCases();
  std::erase_if(cases, ChoosesKeys);
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Float32, GpuParity,
                         testing::Combine(testing::ValuesIn(AllMixerCases()),
                                          testing::Values(DType::kF32), testing::Values(0),
                                          testing::Values(StateExchange::kGather)),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Bfloat16, GpuParity,
                         testing::Combine(testing::ValuesIn(CasesWithoutChoices()),
                                          testing::Values(DType::kBF16), testing::Values(1),
                                          testing::Values(StateExchange::kGather,
                                                          StateExchange::kChain)),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Shards, GpuParity,
                         testing::Combine(testing::Values(MixerCase{"gdn_and_full",
                                                                    {"gdn", "full"}}),
                                          testing::Values(DType::kBF16), testing::Values(2),
                                          testing::Values(StateExchange::kGather)),
                         NameOf);

}  // namespace
}  // namespace lt2

int main(int argc, char** argv) {
  using namespace lt2;
  auto started = StartWorld();
  CHECK(started.ok()) << started.status();
  const absl::StatusOr<Device> device = ClaimGpu(**started);
  if (!device.ok() || !NcclStatus().ok()) {
    const absl::Status& status = device.ok() ? NcclStatus() : device.status();
    if ((*started)->rank() == 0) std::printf("skipped: %s\n", status.ToString().c_str());
    return 77;
  }
  gpu = *device;
  const std::unique_ptr<Communicator> made = MakeNcclCommunicator(*std::move(started), gpu);
  world = made.get();
  const RankGroups of_mesh = MakeGroups(*world, CpMesh());
  const RankGroups of_stages = MakeGroups(*world, PpMesh());
  groups = &of_mesh;
  stages = &of_stages;
  testing::InitGoogleTest(&argc, argv);
  const int failed = RUN_ALL_TESTS();
  if (failed) world->Abort(1);  // the others may wait for this rank
  return 0;
}
