// What a run says of itself: env.json, a checkpoint's manifest; and the step its configuration
// means.
#pragma once

#include "absl/status/statusor.h"
#include "checkpoints/manifest.h"
#include "launch/metrics.h"
#include "launch/resume.h"
#include "launch/run_config.h"
#include "launch/train_step.h"
#include "parallel/communicator.h"

namespace lt2 {

// Hosts, ranks, their GPUs, mesh, versions, threads. Collective over `world`.
JsonLine Environment(const RunConfig& config, const Mesh& mesh, Device device, Communicator& world);

// What a checkpoint of this moment records, but for its id and the optimizer's counters.
CheckpointInfo CheckpointInfoOf(const RunConfig& config, const Mesh& mesh, const Loader& loader,
                                const RunState& state);

// The step that a configuration describes on this mesh and device, whether they are here or not;
// `recompute = "auto"` is left at none. In bfloat16 what follows cheaply from other values is
// rebuilt: memory is what a GPU lacks first. max_documents: in a micro-batch.
StepOptions DescribedStep(const RunConfig& config, const Mesh& mesh, Device device,
                          int64_t max_documents);

// Whether devices of the backend train a model of these sizes on the mesh (model/size_limits.h).
absl::Status CheckSizesOf(const RunConfig& config, const Mesh& mesh, Backend backend);

// DescribedStep for devices that are here, or InvalidArgument; `recompute = "auto"` is decided
// here. max_documents: in a micro-batch. Collective over `world`.
absl::StatusOr<StepOptions> StepOptionsFor(const RunConfig& config, const Mesh& mesh, Device device,
                                           int64_t max_documents, Communicator& world);

}  // namespace lt2
