#include "launch/step_cost.h"

#include <algorithm>
#include <numeric>

#include "parallel/pipeline_simulation.h"

namespace lt2 {
namespace {

// The largest stage's sum of something that layers have.
template <class Of>
double OfLargestStage(int64_t layers, int stages, const Of& of) {
  double most = 0;
  for (int stage = 0; stage < stages; ++stage) {
    const StagePlace place{stage, stages};
    double sum = 0;
    for (int64_t i = place.Begin(layers); i < place.End(layers); ++i) sum += of(i);
    most = std::max(most, sum);
  }
  return most;
}

// The share of the parameters that the largest stage holds.
double LargestShare(const ModelConfig& config, int stages) {
  int64_t most = 0;
  for (int stage = 0; stage < stages; ++stage) {
    most = std::max(most, LanguageModel(config, {}, {stage, stages}).params().elements());
  }
  return static_cast<double>(most) / static_cast<double>(LanguageModel(config).params().elements());
}

double MessageBytes(const StepOptions& options, const Mesh& mesh) {
  const int ranks = mesh.cp * (options.sequence_parallel ? mesh.tp : 1);
  return static_cast<double>(options.micro_batch * options.sequence * options.model.width *
                             SizeOf(options.dtype)) /
         ranks;
}

// Of more micro-batches as few go through a pipeline, but for a last group as large as theirs.
int FewOf(int micro_batches, int stages) {
  constexpr int kFew = 64;
  return std::min(micro_batches, kFew / stages * stages + micro_batches % stages);
}

// Time in which the busiest stage idles, with the jobs as a step orders them. What each group of
// many micro-batches adds the last of the first ones shows.
double Idle(PipelineShape shape, const PipelineCosts& costs) {
  const auto of = [&](int micro_batches) {
    shape.micro_batches = micro_batches;
    const PipelineTimes times = Simulate(MakePipelinePlan(shape), costs);
    return times.makespan - std::ranges::max(times.busy);
  };
  const int all = shape.micro_batches, few = FewOf(all, shape.stages);
  const double first = of(few);
  if (few == all) return first;
  return first + std::max(0.0, first - of(few - shape.stages)) * (all - few) / shape.stages;
}

// Ranks between neighbours of the axis's group; along dp that of all replicas.
int Stride(const Mesh& mesh, Axis axis) {
  return axis == Axis::kTp ? 1 : axis == Axis::kPp ? mesh.dp * mesh.cp * mesh.tp : mesh.tp;
}

}  // namespace

double StepCost::sent_s() const {
  return std::accumulate(axes.begin(), axes.end(), 0.0,
                         [](double sum, const AxisTraffic& axis) { return sum + axis.seconds; });
}

DryStep RunDry(StepOptions options, const Mesh& mesh) {
  DryStep dry{.options = options};
  options.micro_batches = std::min<int64_t>(options.micro_batches, 3);
  dry.micro_batches = static_cast<int>(options.micro_batches);
  const RankGroups groups = MakeMetaGroups(mesh, mesh.RankOf(0, 0, mesh.cp - 1, mesh.tp - 1));
  for (const auto& [copies, group] : groups.wider) dry.axes[group.get()] = Axis::kDp;
  dry.axes[groups.replicas.get()] = dry.axes[groups.world] = Axis::kDp;
  dry.axes[groups.cp.get()] = Axis::kCp;
  dry.axes[groups.tp.get()] = Axis::kTp;
  const CostLog log;
  dry.memory = PlanMemory(options, mesh, groups, /*diagnostics=*/false);
  dry.calls = log.calls();
  dry.memory.step_flops = 0;
  for (const CostLog::Call& call : dry.calls) {
    dry.memory.step_flops += dry.Times(call) * call.flops;
  }
  return dry;
}

double DryStep::Times(const CostLog::Call& call) const {
  if (call.phase < 0) return 0;
  const bool stands_for_many = micro_batches == 3 && call.phase / 2 == 1;
  return stands_for_many ? static_cast<double>(options.micro_batches - 2) : 1;
}

StepCost CostOf(const DryStep& dry, const Machine& machine, Precision precision, const Mesh& mesh,
                Pipeline pipeline) {
  const ModelConfig& model = dry.options.model;
  LanguageModel whole(model);
  StepOptions options = dry.options;
  options.pipeline = pipeline;
  const double m = static_cast<double>(dry.options.micro_batches);
  const double visits = m * static_cast<double>(model.loops);
  const double share = LargestShare(model, mesh.pp);
  const double most_layers = OfLargestStage(model.layers, mesh.pp, [](int) { return 1.0; });
  const double layer_share = most_layers / static_cast<double>(model.layers);
  StepCost cost;
  std::vector<PipelineCosts> layers(model.layers, {0, 0, 0, 0, 0});
  double head = 0, waits = 0;
  for (const CostLog::Call& call : dry.calls) {
    const double times = dry.Times(call);
    const bool in_layer = call.place.layer >= 0, moves = call.group != nullptr;
    double seconds = 0;
    if (moves) {
      const Axis axis = dry.axes.at(call.group);
      const bool update = axis == Axis::kDp;
      const double part = update ? share : in_layer ? layer_share : 1;
      const int ranks = update ? mesh.replicas() : mesh.Extent(axis);
      seconds = machine.SecondsOf(1, call.bytes, ranks, Stride(mesh, axis));
      AxisTraffic& traffic = cost.axes[static_cast<int>(axis)];
      traffic.messages += times;
      traffic.bytes += times * part * call.bytes;
      const double visible = update ? 1 - machine.update_hidden : 1;
      traffic.seconds += times * part * seconds * visible;
      if (update) continue;
      waits += times * part * seconds;
    } else {
      seconds = machine.SecondsOf(call, precision);
    }
    if (dry.IsUpdate(call)) {
      cost.update_s += times * share * seconds;
    } else if (!in_layer) {
      head += times * seconds / m;
    } else {
      PipelineCosts& layer = layers[call.place.layer];
      double& of = call.phase % 2 == 0 ? layer.forward
                   : call.weights      ? layer.backward_weight
                                       : layer.backward_input;
      of += times * seconds / visits;
    }
  }
  const auto of_stage = [&](double PipelineCosts::*job) {
    return OfLargestStage(model.layers, mesh.pp, [&](int layer) { return layers[layer].*job; });
  };
  const double bytes = MessageBytes(dry.options, mesh);
  const PipelineCosts costs = {
      .forward = of_stage(&PipelineCosts::forward),
      .backward_input = of_stage(&PipelineCosts::backward_input),
      .backward_weight = of_stage(&PipelineCosts::backward_weight),
      .head = head,
      .message = machine.SecondsOf(1, bytes, mesh.pp, Stride(mesh, Axis::kPp))};
  const double busy =
      m * head + visits * (costs.forward + costs.backward_input + costs.backward_weight);
  cost.compute_s = busy - waits;
  if (mesh.pp > 1) {
    cost.bubble_s = Idle(PipelineShapeOf(options, whole, mesh.pp), costs);
    AxisTraffic& traffic = cost.axes[static_cast<int>(Axis::kPp)];
    traffic.messages = 2 * visits;
    traffic.bytes = 2 * visits * bytes;
  }
  return cost;
}

MemoryPlan MemoryOf(const DryStep& dry, const Mesh& mesh, Pipeline pipeline) {
  StepOptions options = dry.options;
  if (mesh.pp == 1) {
    if (options.row_tiles == 1) return dry.memory;
    options.micro_batches = dry.micro_batches;
    MemoryPlan most = PlanMost(options, mesh, /*diagnostics=*/false);
    most.step_flops = dry.memory.step_flops;
    return most;
  }
  options.pipeline = pipeline;
  // No more visits are held of more micro-batches, only their tokens.
  const int64_t all = options.micro_batches, P = mesh.pp;
  options.micro_batches = FewOf(static_cast<int>(all), mesh.pp);
  const int64_t layers = options.model.layers;
  MemoryPlan most;
  // The first stage holds the most visits; those with most layers hold the more the earlier.
  for (int stage = 0; stage < P; ++stage) {
    const StagePlace place{stage, mesh.pp};
    const bool large = place.End(layers) - place.Begin(layers) == (layers + P - 1) / P;
    if (stage > 0 && !large) continue;
    const MemoryPlan plan =
        PlanMemory(options, mesh, mesh.RankOf(stage, 0, mesh.cp - 1, mesh.tp - 1), false);
    if (plan.peak_bytes > most.peak_bytes) most = plan;
    if (large) break;
  }
  const int64_t tokens = options.micro_batch * options.sequence / mesh.cp;
  const int64_t batches = (all - options.micro_batches) * 2 * tokens * SizeOf(DType::kI32);
  for (int64_t* bytes : {&most.moment_bytes, &most.persistent_bytes, &most.peak_bytes}) {
    *bytes += batches;
  }
  most.step_flops = dry.memory.step_flops / mesh.pp;
  return most;
}

}  // namespace lt2
