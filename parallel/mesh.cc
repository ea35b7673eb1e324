#include "parallel/mesh.h"

#include <array>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/strings.h"

namespace lt2 {
namespace {

constexpr std::array kAxes = {Axis::kPp, Axis::kDp, Axis::kCp, Axis::kTp};

int* Field(Mesh& mesh, Axis axis) {
  switch (axis) {
    case Axis::kPp:
      return &mesh.pp;
    case Axis::kDp:
      return &mesh.dp;
    case Axis::kCp:
      return &mesh.cp;
    case Axis::kTp:
      return &mesh.tp;
  }
  return nullptr;
}

// Ranks between neighbours along the axis.
int Stride(const Mesh& mesh, Axis axis) {
  int stride = 1;
  for (size_t i = static_cast<size_t>(axis) + 1; i < kAxes.size(); ++i) {
    stride *= mesh.Extent(kAxes[i]);
  }
  return stride;
}

}  // namespace

const char* Name(Axis axis) {
  switch (axis) {
    case Axis::kPp:
      return "pp";
    case Axis::kDp:
      return "dp";
    case Axis::kCp:
      return "cp";
    case Axis::kTp:
      return "tp";
  }
  return "?";
}

absl::StatusOr<Mesh> Mesh::Parse(std::string_view text) {
  Mesh mesh;
  for (const absl::string_view part : absl::StrSplit(Piece(text), ',', absl::SkipWhitespace())) {
    const std::pair<std::string, std::string> item =
        absl::StrSplit(absl::StripAsciiWhitespace(part), absl::MaxSplits('=', 1));
    bool known = false;
    for (Axis axis : kAxes) {
      if (item.first != Name(axis)) continue;
      known = true;
      if (!absl::SimpleAtoi(item.second, Field(mesh, axis)) || mesh.Extent(axis) < 1) {
        return absl::InvalidArgumentError(StrCat("mesh \"", text, "\": ", item.first,
                                                 " wants a whole number of at least 1, got \"",
                                                 item.second, "\""));
      }
    }
    if (!known) {
      return absl::InvalidArgumentError(StrCat("mesh \"", text, "\": unknown axis \"", item.first,
                                               "\"; wants pp, dp, cp or tp, as in \"dp=2,cp=2\""));
    }
  }
  return mesh;
}

std::string Mesh::ToString() const { return StrCat("pp=", pp, ",dp=", dp, ",cp=", cp, ",tp=", tp); }

int Mesh::Extent(Axis axis) const { return *Field(const_cast<Mesh&>(*this), axis); }

int Mesh::Coordinate(int rank, Axis axis) const {
  return rank / Stride(*this, axis) % Extent(axis);
}

int Mesh::RankOf(int at_pp, int at_dp, int at_cp, int at_tp) const {
  return ((at_pp * dp + at_dp) * cp + at_cp) * tp + at_tp;
}

std::unique_ptr<Communicator> AxisGroup(Communicator& world, const Mesh& mesh, Axis axis) {
  CHECK_EQ(world.size(), mesh.size()) << "mesh " << mesh.ToString();
  if (mesh.Extent(axis) == 1) return MakeGroupOfOne(Name(axis));
  // Ranks of one group share what remains when their own coordinate is taken away.
  const int at = mesh.Coordinate(world.rank(), axis);
  return world.Split(world.rank() - at * Stride(mesh, axis), at, Name(axis));
}

namespace {

// The ranks that hold the same part of a parameter: all replicas, `copies` neighbours along tp, and
// with `stages` every stage, which is the slowest.
struct Holders {
  int copies = 1;
  bool stages = false;

  // "pp·dp·cp·tp:2" of the axes along which they differ.
  std::string Name(const Mesh& mesh) const {
    std::vector<std::string> axes;
    for (Axis axis : {Axis::kPp, Axis::kDp, Axis::kCp}) {
      if (mesh.Extent(axis) > 1 && (stages || axis != Axis::kPp)) axes.push_back(lt2::Name(axis));
    }
    if (copies > 1) axes.push_back(StrCat(lt2::Name(Axis::kTp), ":", copies));
    return absl::StrJoin(axes, "·");
  }
  int Size(const Mesh& mesh) const { return mesh.replicas() * copies * (stages ? mesh.pp : 1); }
  int First(const Mesh& mesh, int rank) const {
    const int at_pp = stages ? 0 : mesh.Coordinate(rank, Axis::kPp);
    return mesh.RankOf(at_pp, 0, 0, mesh.Coordinate(rank, Axis::kTp) / copies * copies);
  }
  int Rank(const Mesh& mesh, int rank) const {
    int at = stages ? mesh.Coordinate(rank, Axis::kPp) : 0;
    for (Axis axis : {Axis::kDp, Axis::kCp}) {
      at = at * mesh.Extent(axis) + mesh.Coordinate(rank, axis);
    }
    return at * copies + mesh.Coordinate(rank, Axis::kTp) % copies;
  }
};

template <class Make>
RankGroups GroupsOf(const Mesh& mesh, int rank, const Make& make) {
  RankGroups groups{.dp = mesh.Coordinate(rank, Axis::kDp), .replicas = make(Holders{})};
  for (int copies = 1; copies <= mesh.tp; ++copies) {
    if (mesh.tp % copies != 0) continue;
    if (copies > 1) groups.wider[copies] = make(Holders{.copies = copies});
    if (mesh.pp > 1) groups.across_stages[copies] = make(Holders{copies, /*stages=*/true});
  }
  return groups;
}

}  // namespace

RankGroups MakeGroups(Communicator& world, const Mesh& mesh) {
  CHECK_EQ(world.size(), mesh.size()) << "mesh " << mesh.ToString();
  const int rank = world.rank();
  const auto make = [&](const Holders& holders) -> std::unique_ptr<Communicator> {
    const std::string name = holders.Name(mesh);
    if (name.empty()) return MakeGroupOfOne(Name(Axis::kDp));
    return world.Split(holders.First(mesh, rank), holders.Rank(mesh, rank), name);
  };
  RankGroups groups = GroupsOf(mesh, rank, make);
  groups.world = &world;
  groups.cp = AxisGroup(world, mesh, Axis::kCp);
  groups.tp = AxisGroup(world, mesh, Axis::kTp);
  groups.pp = AxisGroup(world, mesh, Axis::kPp);
  groups.links = MakePipelineLinks(*groups.pp);
  return groups;
}

RankGroups MakeMetaGroups(const Mesh& mesh, int rank) {
  RankGroups groups = GroupsOf(mesh, rank, [&](const Holders& holders) {
    return MakeMetaCommunicator(holders.Rank(mesh, rank), holders.Size(mesh));
  });
  groups.meta_world = MakeMetaCommunicator(rank, mesh.size());
  groups.world = groups.meta_world.get();
  const auto along = [&](Axis axis) {
    return MakeMetaCommunicator(mesh.Coordinate(rank, axis), mesh.Extent(axis));
  };
  groups.cp = along(Axis::kCp);
  groups.tp = along(Axis::kTp);
  groups.pp = along(Axis::kPp);
  groups.links = MakeMetaPipelineLinks(mesh.pp);
  return groups;
}

}  // namespace lt2
