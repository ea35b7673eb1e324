#include "launch/legal_mesh.h"

#include <algorithm>

#include "absl/strings/str_join.h"
#include "core/status_macros.h"
#include "core/strings.h"

namespace lt2 {
namespace {

// "dp=2,tp=4": axes of 1 go unsaid.
std::string ShortName(const Mesh& mesh) {
  std::vector<std::string> axes;
  for (const Axis axis : {Axis::kPp, Axis::kDp, Axis::kCp, Axis::kTp}) {
    if (mesh.Extent(axis) > 1) axes.push_back(StrCat(Name(axis), "=", mesh.Extent(axis)));
  }
  return axes.empty() ? "dp=1" : absl::StrJoin(axes, ",");
}

std::vector<int> Divisors(int number) {
  std::vector<int> divisors;
  for (int i = 1; i <= number; ++i) {
    if (number % i == 0) divisors.push_back(i);
  }
  return divisors;
}

// The legal meshes, or the numbers of ranks nearest to `ranks` that have some.
std::string WhatIsLegal(const RunConfig& config, int ranks) {
  const std::string count = StrCat(ranks, ranks == 1 ? " rank" : " ranks");
  const std::vector<Mesh> meshes = LegalMeshes(config, ranks);
  if (!meshes.empty()) {
    return StrCat("legal on ", count, ": ",
                  absl::StrJoin(meshes, "; ", [](std::string* text, const Mesh& mesh) {
                    StrAppend(text, ShortName(mesh));
                  }));
  }
  std::vector<int> near;
  int below = ranks - 1, above = ranks + 1;
  while (below > 0 && LegalMeshes(config, below).empty()) --below;
  while (above < 2 * ranks && LegalMeshes(config, above).empty()) ++above;
  if (below > 0) near.push_back(below);
  if (above < 2 * ranks) near.push_back(above);
  return near.empty() ? StrCat("no mesh of ", count, " is legal, nor of fewer")
                      : StrCat("no mesh of ", count, " is legal; start ",
                               absl::StrJoin(near, " or "), " (mpirun -n, srun -n)");
}

absl::Status CheckRowTiles(const RunConfig& config, const Mesh& mesh) {
  constexpr int64_t kMostNamed = 64;
  const int64_t tokens = config.data.sequence * config.batch.micro_batch;
  if (tokens % config.parallel.row_tiles == 0) return absl::OkStatus();
  std::string allowed = "1";
  for (int64_t tiles = 2; tiles <= std::min(tokens, kMostNamed); ++tiles) {
    if (tokens % tiles == 0 && tiles % mesh.cp == 0) StrAppend(&allowed, ", ", tiles);
  }
  return absl::InvalidArgumentError(
      StrCat("parallel.row_tiles = ", config.parallel.row_tiles, ": a micro-batch of ", tokens,
             " tokens cannot be cut into as many equal tiles; parallel.cp = ", mesh.cp, " allows ",
             allowed));
}

}  // namespace

std::vector<std::string> MeshProblems(const RunConfig& config, const Mesh& mesh) {
  std::vector<std::string> problems;
  const int64_t sequence = config.data.sequence, rows = config.batch.micro_batch;
  const int64_t tokens = config.batch.tokens, unit = sequence * rows * mesh.dp;
  if (const absl::Status split = CheckSplit(config.model, {.ranks = mesh.tp}); !split.ok()) {
    problems.emplace_back(split.message());
  }
  if (mesh.pp > config.model.layers) {
    problems.push_back(
        StrCat("pp = ", mesh.pp, ": a stage needs a layer, and there are ", config.model.layers));
  }
  if (tokens % unit != 0) {
    problems.push_back(StrCat("dp = ", mesh.dp, ": batch.tokens ", tokens,
                              " is not a multiple of data.sequence ", sequence,
                              " × batch.micro_batch ", rows, " × dp = ", unit));
  } else if (mesh.pp > tokens / unit) {
    problems.push_back(
        StrCat("pp = ", mesh.pp, ": as many micro-batches as stages are needed, and ",
               "a replica has batch.tokens ", tokens, " / (data.sequence ", sequence,
               " × batch.micro_batch ", rows, " × dp ", mesh.dp, ") = ", tokens / unit));
  }
  if (mesh.cp > sequence * rows) {
    problems.push_back(StrCat("cp = ", mesh.cp, ": a micro-batch has ", sequence * rows,
                              " tokens, fewer than one a rank"));
  }
  return problems;
}

std::vector<Mesh> LegalMeshes(const RunConfig& config, int ranks) {
  std::vector<Mesh> legal;
  for (const int pp : Divisors(ranks)) {
    if (pp > config.model.layers) break;
    for (const int tp : Divisors(ranks / pp)) {
      if (!CheckSplit(config.model, {.ranks = tp}).ok()) continue;
      for (const int cp : Divisors(ranks / pp / tp)) {
        const Mesh mesh{.pp = pp, .dp = ranks / pp / tp / cp, .cp = cp, .tp = tp};
        if (MeshProblems(config, mesh).empty()) legal.push_back(mesh);
      }
    }
  }
  return legal;
}

std::vector<std::string> MeshProblems(const RunConfig& config, int ranks) {
  const ParallelConfig& parallel = config.parallel;
  const int64_t others = parallel.pp * parallel.cp * parallel.tp;
  // One that cannot be found is not to blame for anything else.
  const int64_t dp = parallel.dp > 0 ? parallel.dp : ranks % others == 0 ? ranks / others : 1;
  const Mesh mesh{.pp = static_cast<int>(parallel.pp),
                  .dp = static_cast<int>(dp),
                  .cp = static_cast<int>(parallel.cp),
                  .tp = static_cast<int>(parallel.tp)};
  std::vector<std::string> problems = MeshProblems(config, mesh);
  if (dp * others != ranks) {
    problems.insert(
        problems.begin(),
        StrCat("dp × cp × tp × pp = ", parallel.dp > 0 ? StrCat(dp) : "auto", " × ", mesh.cp, " × ",
               mesh.tp, " × ", mesh.pp, " does not make ", ranks,
               parallel.dp > 0 ? StrCat("; start ", dp * others, " (mpirun -n, srun -n)") : ""));
  }
  return problems;
}

absl::StatusOr<Mesh> MeshFor(const RunConfig& config, int ranks) {
  const std::vector<std::string> problems = MeshProblems(config, ranks);
  if (problems.empty()) {
    ASSIGN_OR_RETURN(const Mesh mesh, config.parallel.MeshFor(ranks));
    RETURN_IF_ERROR(CheckRowTiles(config, mesh));
    return mesh;
  }
  return absl::InvalidArgumentError(StrCat("parallel: ", absl::StrJoin(problems, ". "),
                                           ". Axes not named being 1, ",
                                           WhatIsLegal(config, ranks)));
}

}  // namespace lt2
