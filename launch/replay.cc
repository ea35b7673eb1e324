#include "launch/replay.h"

#include <cmath>

#include "checkpoints/agreement.h"
#include "core/status_macros.h"
#include "core/strings.h"

namespace lt2 {
namespace {

JsonLine Number(double value) { return std::isfinite(value) ? JsonLine(value) : JsonLine(); }

// [loss, grad_norm], as a text.
absl::StatusOr<std::string> Recorded(const std::string& run_dir, int64_t step) {
  ASSIGN_OR_RETURN(const MetricsHistory history, ReadMetrics(run_dir));
  const auto found = history.steps.find(step);
  if (found == history.steps.end()) {
    return absl::NotFoundError(
        StrCat("--replay ", step, ": metrics.jsonl of ", run_dir, " has no such step"));
  }
  const JsonLine& line = found->second;
  return JsonLine({line.value("loss", JsonLine()), line.value("grad_norm", JsonLine())}).dump();
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
      const std::string text,
      BroadcastResult(world, world.rank() == 0 ? Recorded(run_dir, step) : std::string()));
  const JsonLine recorded = JsonLine::parse(text);
  options.resume = "auto";
  options.init_from.clear();
  options.max_steps = step;
  options.replay = step;
  ReplayResult result{
      .step = step, .recorded = {recorded[0], recorded[1]}, .first = {}, .second = {}};
  for (ReplayResult::Numbers* numbers : {&result.first, &result.second}) {
    ASSIGN_OR_RETURN(const TrainResult run, Train(config, options, world));
    if (run.step != step) {
      return absl::InvalidArgumentError(
          StrCat("--replay ", step, ": the run ends at step ", run.step));
    }
    result.from = run.from;
    *numbers = {Number(run.loss), Number(run.grad_norm)};
  }
  return result;
}

}  // namespace lt2
