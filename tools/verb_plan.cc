// lt2 plan: what a run will hold and compute, before it runs.
#include <iostream>

#include "absl/strings/str_format.h"
#include "core/status_macros.h"
#include "core/strings.h"
#include "launch/environment.h"
#include "launch/memory_plan.h"
#include "tools/device.h"
#include "tools/flags.h"
#include "tools/verb.h"

namespace lt2 {
namespace {

// What a process finds free.
struct Gpu {
  const char* name;
  double gib;
};
constexpr Gpu kGpus[] = {{"h200", 139.5}, {"h100", 78.5}, {"a100-80", 78.5}, {"a100-40", 39}};

struct PlanFlags {
  ConfigFlags config;
  int gpus = 1;
  std::string gpu;
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

// Of one rank; without --gpu what this machine has now.
absl::StatusOr<int64_t> Budget(const PlanFlags& flags) {
  for (const Gpu& gpu : kGpus) {
    if (flags.gpu == gpu.name) return static_cast<int64_t>(gpu.gib * (1 << 30));
  }
  ASSIGN_OR_RETURN(const Device device, ChooseDevice("auto"));
  return MemoryBudget(device, device.backend == Backend::kCuda ? 1 : flags.gpus);
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

absl::Status RunPlan(const PlanFlags& flags, VerbOutput& output) {
  ASSIGN_OR_RETURN(const RunConfig config, flags.config.Load());
  ASSIGN_OR_RETURN(const Mesh mesh, MeshFor(config, flags.gpus));
  ASSIGN_OR_RETURN(const int64_t budget, Budget(flags));
  const std::vector<PolicyPlan> plans =
      PlanPolicies(DescribedStep(config, mesh, {Backend::kMeta}, config.batch.micro_batch), mesh);
  const absl::StatusOr<RecomputePolicy> chosen = ChooseRecompute(plans, budget);
  const MemoryPlan& none = plans[0].memory;
  const Unit in(none.peak_bytes);
  const double tokens =
      static_cast<double>(config.batch.tokens) / static_cast<double>(mesh.replicas());

  output.result = {{"params", none.parameters},
                   {"model_flops_per_token", none.model_flops_per_token},
                   {"mesh", mesh.ToString()},
                   {"budget_bytes", budget},
                   {"auto", chosen.ok() ? nlohmann::json(Name(*chosen)) : nlohmann::json()}};
  for (const PolicyPlan& plan : plans) {
    output.result["policies"][Name(plan.policy)] = ToJson(plan.memory);
  }
  if (output.json) return absl::OkStatus();

  std::cout << absl::StrFormat(
      "%.2f M parameters, %.3g model FLOPs per token; a rank of %d (%s) takes %d x %d tokens at a "
      "time, in %s\n\n%s of a rank: weights %.2f, gradients %.2f, moments %.2f, and\n",
      static_cast<double>(none.parameters) / 1e6, none.model_flops_per_token, mesh.size(),
      mesh.ToString(), config.batch.micro_batch, config.data.sequence,
      Name(config.parallel.precision), in.name, in(none.weight_bytes), in(none.gradient_bytes),
      in(none.moment_bytes));
  std::cout << absl::StrFormat("%-10s %12s %10s %8s %20s\n", "recompute", "activations",
                               "workspace", "peak", "GFLOP per token");
  for (const PolicyPlan& plan : plans) {
    std::cout << absl::StrFormat("%-10s %12.2f %10.2f %8.2f %20.4g\n", Name(plan.policy),
                                 in(plan.memory.activation_bytes),
                                 in(plan.memory.workspace_bytes()), in(plan.memory.peak_bytes),
                                 plan.memory.step_flops / tokens / 1e9);
  }
  std::cout << (chosen.ok()
                    ? StrCat("\nauto takes ", Name(*chosen), ": ",
                             absl::StrFormat("%.1f %s are there", in(budget), in.name), "\n")
                    : StrCat("\n", chosen.status().message(), "\n"));
  return absl::OkStatus();
}

}  // namespace

Verb PlanVerb() {
  return {.name = "plan",
          .summary =
              "Tells what a run will hold and compute: parameters, FLOPs per token, memory of "
              "a rank under every recompute policy, and which one auto takes.",
          .example = "{lt2} plan lt2-tiny",
          .add = [](CLI::App& app) -> VerbBody {
            auto flags = std::make_shared<PlanFlags>();
            AddConfigFlags(app, &flags->config);
            app.add_option("--gpus", flags->gpus, "ranks it is to run on")
                ->check(WholeNumber(1, 1 << 20));
            std::vector<std::string> names;
            for (const Gpu& gpu : kGpus) names.push_back(gpu.name);
            app.add_option("--gpu", flags->gpu, "whose memory is asked; none: this machine's")
                ->check(CLI::IsMember(names));
            return [flags](VerbOutput& output) { return RunPlan(*flags, output); };
          }};
}

}  // namespace lt2
