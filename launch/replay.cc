#include "launch/replay.h"

#include <cmath>
#include <filesystem>

#include "checkpoints/agreement.h"
#include "checkpoints/catalog.h"
#include "checkpoints/verify.h"
#include "core/log.h"
#include "core/status_macros.h"
#include "core/strings.h"
#include "launch/run_dir.h"

namespace lt2 {
namespace {

JsonLine Number(double value) { return std::isfinite(value) ? JsonLine(value) : JsonLine(); }

absl::StatusOr<std::string> NewestSoundBefore(const std::string& root, int64_t step) {
  ASSIGN_OR_RETURN(const std::vector<StepDirectory> all, ListSteps(root));
  for (auto it = all.rbegin(); it != all.rend(); ++it) {
    if (it->step >= step) continue;
    const auto verified = Verify(it->path);
    if (verified.ok() && verified->sound()) return it->path;
    LogWarn(StrCat(it->path, " is damaged and left out"));
  }
  return absl::NotFoundError(
      StrCat("--replay ", step, ": ", root,
             " has no sound checkpoint of an earlier step; keep more of them "
             "with checkpoint.keep_last or checkpoint.keep_every"));
}

// [loss, grad_norm]
absl::StatusOr<JsonLine> Recorded(const std::string& run_dir, int64_t step) {
  ASSIGN_OR_RETURN(const MetricsHistory history, ReadMetrics(run_dir));
  const auto found = history.steps.find(step);
  if (found == history.steps.end()) {
    return absl::NotFoundError(
        StrCat("--replay ", step, ": metrics.jsonl of ", run_dir, " has no such step"));
  }
  const JsonLine& line = found->second;
  return JsonLine({line.value("loss", JsonLine()), line.value("grad_norm", JsonLine())});
}

// [path of the checkpoint, loss, grad_norm]
absl::StatusOr<std::string> WhatIsThere(const std::string& run_dir, int64_t step) {
  ASSIGN_OR_RETURN(JsonLine there, Recorded(run_dir, step));
  ASSIGN_OR_RETURN(const std::string path,
                   NewestSoundBefore(RunPaths{run_dir}.checkpoints(), step));
  there.insert(there.begin(), path);
  return there.dump();
}

}  // namespace

std::string ReplayResult::Verdict() const {
  if (same())
    return "the recorded step comes back bit for bit: what it shows is no fault of a moment";
  if (!(first == second)) {
    return "two runs differ from each other: memory or arithmetic of these machines is at fault, "
           "or the build is not deterministic";
  }
  return "two runs agree with each other and not with the record: a fault of that moment, or "
         "another mesh, build or machine";
}

absl::StatusOr<ReplayResult> Replay(const RunConfig& config, TrainOptions options, int64_t step,
                                    Communicator& world) {
  const std::string run_dir = options.run_dir.empty() ? config.run.dir : options.run_dir;
  ASSIGN_OR_RETURN(
      const std::string found,
      BroadcastResult(world, world.rank() == 0 ? WhatIsThere(run_dir, step) : std::string()));
  const JsonLine there = JsonLine::parse(found);
  options.resume = there[0].get<std::string>();
  options.init_from.clear();
  options.max_steps = step;
  options.rehearse = true;
  ReplayResult result{
      .step = step,
      .from = StepOfName(std::filesystem::path(options.resume).filename().string()).value_or(0),
      .recorded = {there[1], there[2]},
      .first = {},
      .second = {}};
  for (ReplayResult::Numbers* numbers : {&result.first, &result.second}) {
    ASSIGN_OR_RETURN(const TrainResult run, Train(config, options, world));
    if (run.step != step) {
      return absl::InvalidArgumentError(
          StrCat("--replay ", step, ": the run ends at step ", run.step));
    }
    *numbers = {Number(run.loss), Number(run.grad_norm)};
  }
  return result;
}

}  // namespace lt2
