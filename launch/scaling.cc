#include "launch/scaling.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "core/strings.h"

namespace lt2 {

std::vector<ScalingPoint> Scale(const RunConfig& config, const Machine& machine, int most) {
  std::vector<ScalingPoint> points;
  const ScalingPoint* first = nullptr;
  for (int ranks = 1; ranks <= most; ranks *= 2) {
    ScalingPoint point{.ranks = ranks};
    if (const auto best = FittingMeshes(config, machine, ranks, 1); !best.empty()) {
      point.best = best[0];
    }
    points.push_back(point);
  }
  for (ScalingPoint& point : points) {
    if (!point.best) continue;
    if (first == nullptr) first = &point;
    point.efficiency =
        point.best->tokens_per_s * first->ranks / (first->best->tokens_per_s * point.ranks);
  }
  return points;
}

std::string WhereScalingEnds(const RunConfig& config, const std::vector<ScalingPoint>& points) {
  const ScalingPoint *first = nullptr, *last = nullptr, *beyond = nullptr;
  for (const ScalingPoint& point : points) {
    if (first == nullptr && !point.best) continue;
    if (first == nullptr) first = &point;
    if (!point.best || point.efficiency < kEfficient) {
      beyond = &point;
      break;
    }
    last = &point;
  }
  if (first == nullptr) return "no number of ranks fits";
  const auto percent = [](double share) { return absl::StrFormat("%.0f %%", 100 * share); };
  const std::string far =
      StrCat("efficient up to ", last->ranks, " ranks (", percent(last->efficiency),
             " of what one of ", first->ranks, " does)");
  if (beyond == nullptr) return StrCat(far, ", the most that were asked for");
  if (!beyond->best) {
    return StrCat(far, "; ", beyond->ranks,
                  " are too many for batch.tokens = ", config.batch.tokens,
                  ": no mesh gives each of them its part");
  }
  const StepCost &before = first->best->cost, &after = beyond->best->cost;
  const double fewer = static_cast<double>(first->ranks) / beyond->ranks;
  // What a step takes longer than the part of it that so many ranks would each have.
  std::vector<std::pair<double, std::string>> lost = {
      {after.bubble_s, "idle stages of the pipeline"},
      {after.update_s - fewer * before.update_s, "the update"},
      {after.compute_s - fewer * before.compute_s,
       "work that is not divided: kernels too short to fill a rank, the head on one stage"}};
  for (const Axis axis : {Axis::kPp, Axis::kDp, Axis::kCp, Axis::kTp}) {
    lost.emplace_back(after.axes[static_cast<int>(axis)].seconds,
                      StrCat("communication along ", Name(axis)));
  }
  const auto& [most, what] = *std::ranges::max_element(lost);
  return StrCat(far, "; ", beyond->ranks, " reach ", percent(beyond->efficiency),
                ", as batch.tokens = ", config.batch.tokens, " leaves each ",
                config.batch.tokens / beyond->ranks,
                " tokens a step: ", percent(most / after.seconds()), " of it is ", what);
}

}  // namespace lt2
