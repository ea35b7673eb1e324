#include "launch/environment.h"

#include <omp.h>
#include <unistd.h>

#include <cstdlib>

#include "checkpoints/agreement.h"
#include "core/cuda.h"
#include "core/status_macros.h"
#include "core/strings.h"
#include "core/version.h"
#include "launch/memory_plan.h"
#include "model/size_limits.h"

namespace lt2 {

JsonLine Environment(const RunConfig& config, const Mesh& mesh, Device device,
                     Communicator& world) {
  const char* job = std::getenv("SLURM_JOB_ID");
  JsonLine gpus = JsonLine::array();
  if (device.backend == Backend::kCuda) {
    gpus = world.GatherStrings(cuda::Describe(device.index));
  }
  return {{"hosts", world.GatherStrings(world.host())},
          {"ranks", world.size()},
          {"mesh", mesh.ToString()},
          {"zero", config.parallel.zero},
          {"threads_per_rank", omp_get_max_threads()},
          {"gpus", gpus},
          {"job", job == nullptr ? "" : job}};
}

CheckpointInfo CheckpointInfoOf(const RunConfig& config, const Mesh& mesh, const Loader& loader,
                                const RunState& state) {
  CheckpointInfo info;
  info.step = state.step;
  info.tokens = state.tokens;
  info.samples = state.samples;
  info.data = loader.fingerprint();
  info.tokenizer = loader.tokenizer().name();
  info.tokenizer_hash = loader.tokenizer().hash();
  info.seed = static_cast<uint64_t>(config.run.seed);
  info.config = config.ToToml();
  info.mesh = StrCat(mesh.ToString(), " zero=", config.parallel.zero);
  info.ranks = mesh.size();
  info.code = GitCommit();
  return info;
}

StepOptions DescribedStep(const RunConfig& config, const Mesh& mesh, Device device,
                          int64_t max_documents) {
  const int64_t replica_tokens = config.batch.micro_batch * config.data.sequence * mesh.dp;
  const DType dtype = config.parallel.compute_dtype();
  StepOptions options{.model = config.model,
                      .optimizer = config.optimizer,
                      .zero = static_cast<int>(config.parallel.zero),
                      .state_exchange = config.parallel.state_exchange,
                      .row_tiles = static_cast<int>(config.parallel.row_tiles),
                      .sequence_parallel = config.parallel.sequence_parallel,
                      .pipeline = config.parallel.pipeline,
                      .rebuild = dtype == DType::kBF16 ? Rebuild::kCheap : Rebuild::kNothing,
                      .dtype = dtype,
                      .device = device,
                      .sequence = config.data.sequence,
                      .micro_batch = config.batch.micro_batch,
                      .micro_batches = config.batch.tokens / replica_tokens,
                      .max_documents = max_documents,
                      .graphs = config.run.graphs};
  if (config.parallel.recompute != RecomputeChoice::kAuto) {
    options.recompute = static_cast<RecomputePolicy>(config.parallel.recompute);
  }
  return options;
}

absl::Status CheckSizesOf(const RunConfig& config, const Mesh& mesh, Backend backend) {
  const int64_t tokens = config.data.sequence * config.batch.micro_batch;
  return CheckSizes(config.model, backend,
                    {.tensor_ranks = mesh.tp, .tokens = (tokens + mesh.cp - 1) / mesh.cp});
}

absl::StatusOr<StepOptions> StepOptionsFor(const RunConfig& config, const Mesh& mesh, Device device,
                                           int64_t max_documents, Communicator& world) {
  if (device.backend == Backend::kCuda) {
    if (config.parallel.row_tiles > 1) {
      return absl::InvalidArgumentError(
          "parallel.row_tiles: works on CPUs; use --device cpu, or set it to 1");
    }
    if (config.parallel.precision == Precision::kFp64) {
      return absl::InvalidArgumentError(
          "parallel.precision: GPUs compute in fp32 or bf16; use --device cpu for fp64");
    }
  } else if (config.parallel.precision == Precision::kBf16) {
    return absl::InvalidArgumentError(
        "parallel.precision: \"bf16\" is computed on a GPU (--device cuda); use \"fp32\" on a CPU");
  }
  RETURN_IF_ERROR(CheckSizesOf(config, mesh, device.backend));
  StepOptions options = DescribedStep(config, mesh, device, max_documents);
  if (config.parallel.recompute != RecomputeChoice::kAuto) return options;
  // Rank 0 decides for all: its view of free memory is one of several.
  absl::StatusOr<std::string> choice = std::string();
  if (world.rank() == 0) {
    const absl::StatusOr<RecomputePolicy> policy =
        ChooseRecompute(PlanPolicies(options, mesh), MemoryBudget(device, world.local_size()));
    choice = policy.ok() ? absl::StatusOr<std::string>(std::to_string(static_cast<int>(*policy)))
                         : policy.status();
  }
  ASSIGN_OR_RETURN(const std::string chosen, BroadcastResult(world, choice));
  options.recompute = static_cast<RecomputePolicy>(std::atoi(chosen.c_str()));
  return options;
}

}  // namespace lt2
