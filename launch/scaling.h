// How far more ranks of a machine make a training step faster, and why no further.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launch/mesh_search.h"

namespace lt2 {

// Numbers of ranks, doubling up to `most`, each on its best mesh.
struct ScalingPoint {
  int ranks = 1;
  std::optional<MeshChoice> best;  // none is legal, or none fits
  double efficiency = 0;           // of a rank, of that with the fewest ranks that fit
};
std::vector<ScalingPoint> Scale(const RunConfig& config, const Machine& machine, int most);
// Up to how many ranks each still does kEfficient of what it does among few, and what grows beyond.
constexpr double kEfficient = 0.8;
std::string WhereScalingEnds(const RunConfig& config, const std::vector<ScalingPoint>& points);

}  // namespace lt2
