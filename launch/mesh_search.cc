#include "launch/mesh_search.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "absl/strings/str_format.h"
#include "core/strings.h"
#include "launch/environment.h"
#include "launch/legal_mesh.h"

namespace lt2 {
namespace {

constexpr int kMostRanks = 1 << 20;

std::string Gib(double bytes) { return absl::StrFormat("%.1f GiB", bytes / (1 << 30)); }

// What meshes of few ranks tell of many: their steps' times are added up again with other counts.
class Estimator {
 public:
  Estimator(const RunConfig& config, const Machine& machine) : config_(config), machine_(machine) {}

  double Seconds(const Mesh& mesh) {
    const Base& base = BaseOf(mesh.tp);
    const StepCost& alone = base.alone;
    const auto axis = [](const StepCost& cost, Axis of) { return cost.axes[static_cast<int>(of)]; };
    const double m = MicroBatches(config_, mesh);
    const double visits = m * static_cast<double>(config_.model.loops);
    const double idle = mesh.pp > 1 ? (mesh.pp - 1) / (3 * visits) : 0;
    const double work = alone.compute_s + axis(alone, Axis::kTp).seconds;
    double seconds = m * work / (mesh.cp * mesh.pp) * (1 + idle);
    if (mesh.cp > 1) {
      const AxisTraffic& of_two = axis(base.of_two, Axis::kCp);
      seconds +=
          m / mesh.pp *
          machine_.SecondsOf(of_two.messages, of_two.bytes * (mesh.cp - 1), mesh.cp, mesh.tp);
    }
    const double gradients = static_cast<double>(base.memory.gradient_bytes) / mesh.pp;
    return seconds + machine_.SecondsOf(8, 2 * gradients, mesh.replicas(), mesh.tp);
  }

  // Less than any rank holds.
  double LeastBytes(const Mesh& mesh) {
    const MemoryPlan& memory = BaseOf(mesh.tp).memory;
    const double shards = config_.parallel.zero > 0 ? mesh.replicas() : 1;
    const double gradients = static_cast<double>(memory.gradient_bytes);
    return (static_cast<double>(memory.weight_bytes) + 2 * gradients / shards +
            (config_.parallel.zero < 2 ? gradients : 0)) /
           mesh.pp;
  }

  static double MicroBatches(const RunConfig& config, const Mesh& mesh) {
    return static_cast<double>(config.batch.tokens) /
           static_cast<double>(config.data.sequence * config.batch.micro_batch * mesh.dp);
  }

 private:
  // Of one micro-batch.
  struct Base {
    StepCost alone, of_two;
    MemoryPlan memory;
  };

  const Base& BaseOf(int tp) {
    const auto [at, is_new] = bases_.try_emplace(tp);
    if (!is_new) return at->second;
    Base& base = at->second;
    for (const int cp : {1, 2}) {
      const Mesh mesh{.cp = cp, .tp = tp};
      RunConfig one = config_;
      one.batch.tokens = one.data.sequence * one.batch.micro_batch;
      const DryStep dry = RunDry(one, mesh, RecomputePolicy::kNone);
      (cp == 1 ? base.alone : base.of_two) =
          CostOf(dry, machine_, config_.parallel.precision, mesh, Pipeline::kRing);
      if (cp == 1) base.memory = dry.memory;
    }
    return base;
  }

  const RunConfig& config_;
  const Machine& machine_;
  std::map<int, Base> bases_;
};

std::vector<Pipeline> PipelinesOf(const Mesh& mesh) {
  if (mesh.pp == 1) return {Pipeline::kRing};
  return {Pipeline::kRing, Pipeline::kRingZb};
}

struct Found {
  std::vector<MeshChoice> best;  // fastest first
  double least_bytes = 0;        // that any of the others needs
  bool legal = false;            // some mesh is
};

Found Search(const RunConfig& config, const Machine& machine, int ranks, int most) {
  Estimator estimator(config, machine);
  std::vector<std::pair<double, Mesh>> meshes;
  Found found;
  const auto too_large = [&](double bytes) {
    found.least_bytes = found.least_bytes == 0 ? bytes : std::min(found.least_bytes, bytes);
  };
  const double memory = machine.ForRanks(ranks).memory;
  for (const Mesh& mesh : LegalMeshes(config, ranks)) {
    found.legal = true;
    const double least = estimator.LeastBytes(mesh);
    if (least > memory) {
      too_large(least);
    } else {
      meshes.emplace_back(estimator.Seconds(mesh), mesh);
    }
  }
  std::ranges::stable_sort(meshes, {}, &std::pair<double, Mesh>::first);
  // The estimate is not exact: some more are examined than are asked for.
  const size_t enough = static_cast<size_t>(most) + 10;
  for (const auto& [estimate, mesh] : meshes) {
    if (found.best.size() >= enough) break;
    std::optional<MeshChoice> faster;
    for (const Pipeline pipeline : PipelinesOf(mesh)) {
      const MeshChoice choice = Examine(config, machine, mesh, pipeline);
      const auto bytes = static_cast<double>(choice.memory.peak_bytes);
      if (bytes > memory) {
        too_large(bytes);
      } else if (!faster || choice.cost.seconds() < faster->cost.seconds()) {
        faster = choice;
      }
    }
    if (faster) found.best.push_back(*faster);
  }
  std::ranges::stable_sort(found.best, {}, [](const MeshChoice& c) { return c.cost.seconds(); });
  if (found.best.size() > static_cast<size_t>(most)) found.best.resize(most);
  return found;
}

// The first change after which some mesh fits: fewer rows at a time, then more ranks.
std::string SmallestChange(RunConfig config, const Machine& machine, int ranks) {
  const auto fits = [&](int64_t rows, int on) -> std::optional<MeshChoice> {
    config.batch.micro_batch = rows;
    const std::vector<MeshChoice> best = Search(config, machine, on, 1).best;
    return best.empty() ? std::nullopt : std::optional(best[0]);
  };
  const auto how = [](const MeshChoice& choice) {
    return StrCat(" fits, with ", choice.mesh.ToString(), " and parallel.recompute = \"",
                  Name(choice.recompute), "\"");
  };
  const int64_t rows = config.batch.micro_batch;
  for (int64_t fewer = rows / 2; fewer >= 1; fewer /= 2) {
    if (const auto best = fits(fewer, ranks)) {
      return StrCat("batch.micro_batch = ", fewer, how(*best));
    }
  }
  for (int more = 2 * ranks; more <= kMostRanks && more <= 1024 * ranks; more *= 2) {
    for (int64_t fewer = rows; fewer >= 1; fewer /= 2) {
      if (const auto best = fits(fewer, more)) {
        return StrCat(more, " ranks with batch.micro_batch = ", fewer, how(*best));
      }
    }
  }
  return "no smaller batch.micro_batch and no larger number of ranks does: lower data.sequence, or "
         "raise parallel.zero";
}

}  // namespace

DryStep RunDry(const RunConfig& config, const Mesh& mesh, RecomputePolicy policy) {
  StepOptions options =
      DescribedStep(config, mesh, {Backend::kMeta}, /*max_documents=*/config.batch.micro_batch);
  options.sequence_parallel &= mesh.tp > 1;
  options.recompute = policy;
  return RunDry(options, {.dp = mesh.dp, .cp = mesh.cp, .tp = mesh.tp});
}

MeshChoice Examine(const RunConfig& config, const Machine& machine, const Mesh& mesh,
                   Pipeline pipeline) {
  const Machine part = machine.ForRanks(mesh.size());
  MeshChoice choice{.mesh = mesh, .pipeline = pipeline};
  const auto examine = [&](RecomputePolicy policy) {
    const DryStep dry = RunDry(config, mesh, policy);
    choice.recompute = policy;
    choice.micro_batches = dry.options.micro_batches;
    choice.memory = MemoryOf(dry, mesh, pipeline);
    choice.cost = CostOf(dry, part, config.parallel.precision, mesh, pipeline);
    choice.tokens_per_s = static_cast<double>(config.batch.tokens) / choice.cost.seconds();
    return static_cast<double>(choice.memory.peak_bytes) <= part.memory;
  };
  for (const RecomputePolicy policy : kRecomputePolicies) {
    if (examine(policy)) break;
  }
  return choice;
}

std::vector<MeshChoice> FittingMeshes(const RunConfig& config, const Machine& machine, int ranks,
                                      int most) {
  return Search(config, machine, ranks, most).best;
}

absl::StatusOr<std::vector<MeshChoice>> BestMeshes(const RunConfig& config, const Machine& machine,
                                                   int ranks, int most) {
  Found found = Search(config, machine, ranks, most);
  if (!found.best.empty()) return std::move(found.best);
  if (!found.legal) return MeshFor(config, ranks).status();
  return absl::InvalidArgumentError(StrCat(
      "no mesh of ", ranks, ranks == 1 ? " rank" : " ranks", " and no parallel.recompute fit ",
      Gib(machine.ForRanks(ranks).memory), " a rank: the leanest needs ", Gib(found.least_bytes),
      "; ", SmallestChange(config, machine, ranks)));
}

}  // namespace lt2
