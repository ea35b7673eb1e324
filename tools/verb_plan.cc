// lt2 plan: what a run will hold, compute and take, before it runs.
#include <sys/ioctl.h>
#include <unistd.h>

#include <iostream>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "core/file.h"
#include "core/status_macros.h"
#include "core/strings.h"
#include "launch/bench_machine.h"
#include "launch/environment.h"
#include "launch/legal_mesh.h"
#include "launch/scaling.h"
#include "launch/schedule_drawing.h"
#include "launch/threads.h"
#include "model/language_model.h"
#include "tools/device.h"
#include "tools/flags.h"
#include "tools/verb.h"

namespace lt2 {
namespace {

struct PlanFlags {
  ConfigFlags config;
  int gpus = 1, best = 10, most = 4096;
  std::string gpu = "none", svg = "none";
  bool schedule = false;
};

// What numbers of a table are told in.
struct Unit {
  const char* name;
  double bytes;
  explicit Unit(int64_t largest)
      : name(largest < int64_t{1} << 30 ? "MiB" : "GiB"),
        bytes(largest < int64_t{1} << 30 ? 1 << 20 : 1 << 30) {}
  double operator()(int64_t count) const { return static_cast<double>(count) / bytes; }
};

absl::StatusOr<std::optional<Machine>> ChooseMachine(const PlanFlags& flags,
                                                     const RunConfig& config) {
  if (flags.gpu == "none") return std::nullopt;
  absl::StatusOr<Machine> machine = absl::UnknownError("");
  if (flags.gpu == "cpu") {
    const std::unique_ptr<Communicator> alone = MakeGroupOfOne();
    UseThreadsFor(*alone);
    machine = MeasureMachine({}, config.parallel.precision, *alone, /*repeats=*/3);
  } else {
    machine = LoadMachine(flags.gpu);
  }
  RETURN_IF_ERROR(machine.status());
  RETURN_IF_ERROR(machine->CheckPrecision(config.parallel.precision));
  return std::optional(*std::move(machine));
}

nlohmann::json ToJson(const MemoryPlan& plan) {
  return {{"peak_bytes", plan.peak_bytes},
          {"weight_bytes", plan.weight_bytes},
          {"gradient_bytes", plan.gradient_bytes},
          {"moment_bytes", plan.moment_bytes},
          {"activation_bytes", plan.activation_bytes},
          {"workspace_bytes", plan.workspace_bytes()},
          {"step_flops", plan.step_flops}};
}

nlohmann::json ToJson(const StepCost& cost) {
  nlohmann::json json = {{"seconds", cost.seconds()},
                         {"compute_s", cost.compute_s},
                         {"bubble_s", cost.bubble_s},
                         {"update_s", cost.update_s}};
  for (const Axis axis : {Axis::kPp, Axis::kDp, Axis::kCp, Axis::kTp}) {
    const AxisTraffic& traffic = cost.axes[static_cast<int>(axis)];
    json["sent"][Name(axis)] = {
        {"messages", traffic.messages}, {"bytes", traffic.bytes}, {"seconds", traffic.seconds}};
  }
  return json;
}

nlohmann::json ToJson(const MeshChoice& choice) {
  return {{"mesh", choice.mesh.ToString()},      {"pipeline", Name(choice.pipeline)},
          {"recompute", Name(choice.recompute)}, {"micro_batches", choice.micro_batches},
          {"memory", ToJson(choice.memory)},     {"step", ToJson(choice.cost)},
          {"tokens_per_s", choice.tokens_per_s}};
}

std::string Percent(double part, double whole) {
  return absl::StrFormat("%.1f %%", 100 * part / whole);
}

// Of the configuration's own mesh, under every policy.
absl::Status TellPolicies(const RunConfig& config, const Mesh& mesh,
                          const std::optional<Machine>& machine, VerbOutput& output) {
  int64_t budget = 0;
  if (machine) {
    budget = static_cast<int64_t>(machine->ForRanks(mesh.size()).memory);
  } else {
    ASSIGN_OR_RETURN(const Device device, ChooseDevice("auto"));
    budget = MemoryBudget(device, device.backend == Backend::kCuda ? 1 : mesh.size());
  }
  std::vector<PolicyPlan> plans;
  std::vector<double> seconds;
  for (const RecomputePolicy policy : kRecomputePolicies) {
    const DryStep dry = RunDry(config, mesh, policy);
    plans.push_back({policy, MemoryOf(dry, mesh, config.parallel.pipeline)});
    nlohmann::json& json = output.result["policies"][Name(policy)] = ToJson(plans.back().memory);
    if (!machine) continue;
    const StepCost cost = CostOf(dry, machine->ForRanks(mesh.size()), config.parallel.precision,
                                 mesh, config.parallel.pipeline);
    json["step"] = ToJson(cost);
    seconds.push_back(cost.seconds());
  }
  const absl::StatusOr<RecomputePolicy> chosen = ChooseRecompute(plans, budget);
  const MemoryPlan& any = plans[0].memory;
  const Unit in(any.peak_bytes);
  const double tokens =
      static_cast<double>(config.batch.tokens) / static_cast<double>(mesh.replicas());
  output.result.update({{"params", any.parameters},
                        {"model_flops_per_token", any.model_flops_per_token},
                        {"mesh", mesh.ToString()},
                        {"budget_bytes", budget},
                        {"auto", chosen.ok() ? nlohmann::json(Name(*chosen)) : nlohmann::json()}});
  if (output.json) return absl::OkStatus();

  std::cout << absl::StrFormat(
      "%.2f M parameters, %.3g model FLOPs per token; a rank of %d (%s) takes %d x %d tokens at a "
      "time, in %s\n\n%s of a rank: weights %.2f, gradients %.2f, moments %.2f, and\n",
      static_cast<double>(any.parameters) / 1e6, any.model_flops_per_token, mesh.size(),
      mesh.ToString(), config.batch.micro_batch, config.data.sequence,
      Name(config.parallel.precision), in.name, in(any.weight_bytes), in(any.gradient_bytes),
      in(any.moment_bytes));
  std::cout << absl::StrFormat("%-10s %12s %10s %8s %18s%s\n", "recompute", "activations",
                               "workspace", "peak", "GFLOP per token", machine ? "   step s" : "");
  for (size_t i = 0; i < plans.size(); ++i) {
    const MemoryPlan& plan = plans[i].memory;
    std::cout << absl::StrFormat("%-10s %12.2f %10.2f %8.2f %18.4g%s\n", Name(plans[i].policy),
                                 in(plan.activation_bytes), in(plan.workspace_bytes()),
                                 in(plan.peak_bytes), plan.step_flops / tokens / 1e9,
                                 machine ? absl::StrFormat(" %8.4g", seconds[i]) : "");
  }
  std::cout << (chosen.ok()
                    ? StrCat("\nauto takes ", Name(*chosen), ": ",
                             absl::StrFormat("%.1f %s are there", in(budget), in.name), "\n")
                    : StrCat("\n", chosen.status().message(), "\n"));
  return absl::OkStatus();
}

absl::Status TellMeshes(const RunConfig& config, const PlanFlags& flags, const Machine& machine,
                        VerbOutput& output) {
  ASSIGN_OR_RETURN(const std::vector<MeshChoice> best,
                   BestMeshes(config, machine, flags.gpus, flags.best));
  const std::vector<ScalingPoint> points = Scale(config, machine, flags.most);
  const std::string end = WhereScalingEnds(config, points);
  for (const MeshChoice& choice : best) output.result["meshes"].push_back(ToJson(choice));
  for (const ScalingPoint& point : points) {
    output.result["scaling"].push_back(
        {{"ranks", point.ranks},
         {"efficiency", point.efficiency},
         {"best", point.best ? ToJson(*point.best) : nlohmann::json()}});
  }
  output.result["scaling_ends"] = end;
  output.result["machine"] = machine.name;
  if (output.json) return absl::OkStatus();

  std::cout << absl::StrFormat(
      "\nBest meshes of %d x %s, as planned (%s):\n%-28s %-8s %-9s %5s %9s %10s %6s %8s %8s %8s "
      "%8s\n",
      flags.gpus, machine.name, machine.source, "mesh", "pipeline", "recompute", "m", "peak GiB",
      "tokens/s", "MFU", "step s", "bubble", "sent", "update");
  const double peak = machine.products.at(config.parallel.precision).peak;
  for (const MeshChoice& c : best) {
    const double seconds = c.cost.seconds();
    std::cout << absl::StrFormat(
        "%-28s %-8s %-9s %5d %9.2f %10.0f %6s %8.4g %8s %8s %8s\n", c.mesh.ToString(),
        c.mesh.pp > 1 ? Name(c.pipeline) : "", Name(c.recompute), c.micro_batches,
        static_cast<double>(c.memory.peak_bytes) / (1 << 30), c.tokens_per_s,
        peak > 0 ? absl::StrFormat("%.0f %%", 100 * c.memory.model_flops_per_token *
                                                  c.tokens_per_s / (flags.gpus * peak))
                 : "",
        seconds, Percent(c.cost.bubble_s, seconds), Percent(c.cost.sent_s(), seconds),
        Percent(c.cost.update_s, seconds));
  }
  std::cout << "\nOf the first, a rank sends in a step:\n";
  for (const Axis axis : {Axis::kPp, Axis::kDp, Axis::kCp, Axis::kTp}) {
    const AxisTraffic& traffic = best[0].cost.axes[static_cast<int>(axis)];
    if (traffic.messages == 0) continue;
    std::cout << absl::StrFormat("  %s %.0f messages, %.4g MB, %.3g s\n", Name(axis),
                                 traffic.messages, traffic.bytes / 1e6, traffic.seconds);
  }
  std::cout << "\n   ranks   tokens/s  efficiency  mesh\n";
  for (const ScalingPoint& point : points) {
    if (!point.best) continue;
    std::cout << absl::StrFormat("%8d %10.0f %11s  %s, recompute %s\n", point.ranks,
                                 point.best->tokens_per_s, Percent(point.efficiency, 1),
                                 point.best->mesh.ToString(), Name(point.best->recompute));
  }
  std::cout << "\n" << end << "\n";
  return absl::OkStatus();
}

int TerminalWidth() {
  winsize size{};
  const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 20;
  return known ? size.ws_col : 100;
}

absl::Status DrawPipeline(const RunConfig& config, const Mesh& mesh, const PlanFlags& flags,
                          VerbOutput& output) {
  if (mesh.pp == 1) {
    return absl::InvalidArgumentError(
        "--schedule: parallel.pp = 1 is no pipeline; set parallel.pp and start as many ranks "
        "(--gpus)");
  }
  // In units of a stage's forward.
  LanguageModel whole(config.model);
  const PipelineShape shape = PipelineShapeOf(
      DescribedStep(config, mesh, {Backend::kMeta}, config.batch.micro_batch), whole, mesh.pp);
  const PipelineTimes times = Simulate(MakePipelinePlan(shape), shape.costs);
  if (flags.svg != "none") {
    RETURN_IF_ERROR(FileSystem::Get().WriteFile(flags.svg, ScheduleSvg(times)));
  }
  output.result = {{"mesh", mesh.ToString()},        {"pipeline", Name(shape.pipeline)},
                   {"loops", shape.loops},           {"micro_batches", shape.micro_batches},
                   {"head_units", shape.costs.head}, {"units", times.makespan},
                   {"bubble", times.bubble()},       {"peak_visits", times.peak_visits}};
  if (output.json) return absl::OkStatus();
  std::cout << Name(shape.pipeline) << ", " << shape.loops << " loops, " << shape.micro_batches
            << " micro-batches, " << DrawSchedule(times, TerminalWidth() - 5);
  return absl::OkStatus();
}

absl::Status RunPlan(const PlanFlags& flags, VerbOutput& output) {
  ASSIGN_OR_RETURN(const RunConfig config, flags.config.Load());
  const absl::StatusOr<Mesh> mesh = MeshFor(config, flags.gpus);
  if (flags.schedule) {
    RETURN_IF_ERROR(mesh.status());
    return DrawPipeline(config, *mesh, flags, output);
  }
  ASSIGN_OR_RETURN(const std::optional<Machine> machine, ChooseMachine(flags, config));
  if (machine && !machine->shared) {
    const Mesh drawn{.cp = static_cast<int>(config.parallel.cp),
                     .tp = static_cast<int>(config.parallel.tp)};
    RETURN_IF_ERROR(CheckSizesOf(config, drawn, Backend::kCuda));
  }
  // A mesh that is to be chosen need not be there yet.
  if (!machine) RETURN_IF_ERROR(mesh.status());
  if (mesh.ok()) {
    RETURN_IF_ERROR(TellPolicies(config, *mesh, machine, output));
  } else if (!output.json) {
    std::cout << "[parallel] as it is cannot run on " << flags.gpus
              << " ranks: " << absl::StrJoin(MeshProblems(config, flags.gpus), ". ") << "\n";
  }
  return machine ? TellMeshes(config, flags, *machine, output) : absl::OkStatus();
}

}  // namespace

Verb PlanVerb() {
  return {
      .name = "plan",
      .summary =
          "Tells what a run will hold, compute and take: parameters, FLOPs per token, memory "
          "of a rank under every recompute policy; with --gpu the best meshes on so many of "
          "them, and how many it pays to use; with --schedule the pipeline's jobs.",
      .example = "{lt2} plan lt2-1.3b-full-gdn --set parallel.precision=bf16 --gpus 8 --gpu h200",
      .add = [](CLI::App& app) -> VerbBody {
        auto flags = std::make_shared<PlanFlags>();
        AddConfigFlags(app, &flags->config);
        app.add_option("--gpus", flags->gpus, "ranks it is to run on")
            ->check(WholeNumber(1, 1 << 20));
        std::vector<std::string> names = MachineNames();
        app.add_option("--gpu", flags->gpu,
                       StrCat("machine: ", absl::StrJoin(names, ", "),
                              ", a file of `lt2 bench machine`, or cpu: this one, measured now; "
                              "none: only memory, of what is free here"));
        app.add_option("--best", flags->best, "meshes that are shown")->check(WholeNumber(1, 1000));
        app.add_option("--most", flags->most, "ranks up to which the scaling is told")
            ->check(WholeNumber(1, 1 << 16));
        CLI::Option* schedule = app.add_flag(
            "--schedule", flags->schedule,
            "draws the pipeline of [parallel] instead, a column for what a stage's forward takes");
        app.add_option("--svg", flags->svg, "with --schedule: also to this file")->needs(schedule);
        return [flags](VerbOutput& output) { return RunPlan(*flags, output); };
      }};
}

}  // namespace lt2
