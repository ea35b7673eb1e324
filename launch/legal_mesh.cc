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

// Of each axis what may be legal, whatever the others are: enough to try no more than these.
struct Choices {
  explicit Choices(const RunConfig& config)
      : pp(config.model.layers),
        cp(config.data.sequence * config.batch.micro_batch),
        tp(LegalSplits(config.model)) {
    const int64_t rows = config.batch.tokens / cp;
    for (int64_t replicas = rows; replicas >= 1; --replicas) {
      if (rows % replicas == 0) dp.push_back(replicas);
    }
  }
  int64_t pp, cp;  // and all below
  std::vector<int64_t> tp, dp;
};

// fn(mesh) for each of so many ranks that may be legal, until it returns true; whether it did.
template <class Fn>
bool AnyMesh(const Choices& choices, int ranks, const Fn& fn) {
  for (int64_t pp = 1; pp <= choices.pp; ++pp) {
    for (const int64_t tp : choices.tp) {
      for (const int64_t dp : choices.dp) {
        const int64_t others = pp * tp * dp, cp = ranks / others;
        if (ranks % others != 0 || cp > choices.cp) continue;
        if (fn(Mesh{.pp = static_cast<int>(pp),
                    .dp = static_cast<int>(dp),
                    .cp = static_cast<int>(cp),
                    .tp = static_cast<int>(tp)})) {
          return true;
        }
      }
    }
  }
  return false;
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
  const Choices choices(config);
  const auto legal = [&](int number) {
    return AnyMesh(choices, number,
                   [&](const Mesh& mesh) { return MeshProblems(config, mesh).empty(); });
  };
  std::vector<int> near;
  int below = ranks - 1, above = ranks + 1;
  while (below > 0 && !legal(below)) --below;
  while (above < 2 * ranks && !legal(above)) ++above;
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
  if (const int64_t tiles = config.parallel.row_tiles; tiles > 1) {
    if (tiles % mesh.cp != 0) {
      problems.push_back(StrCat("cp = ", mesh.cp, ": does not divide row_tiles = ", tiles));
    }
    if (mesh.pp > 1) problems.push_back(StrCat("pp = ", mesh.pp, ": row_tiles needs pp = 1"));
  }
  return problems;
}

std::vector<Mesh> LegalMeshes(const RunConfig& config, int ranks) {
  std::vector<Mesh> legal;
  AnyMesh(Choices(config), ranks, [&](const Mesh& mesh) {
    if (MeshProblems(config, mesh).empty()) legal.push_back(mesh);
    return false;
  });
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
