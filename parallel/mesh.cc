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

absl::Status Mesh::CheckSupported() const {
  if (pp == 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      StrCat("pp = ", pp, " is not supported by this version; set parallel.pp = 1"));
}

std::unique_ptr<Communicator> AxisGroup(Communicator& world, const Mesh& mesh, Axis axis) {
  CHECK_EQ(world.size(), mesh.size()) << "mesh " << mesh.ToString();
  if (mesh.Extent(axis) == 1) return MakeGroupOfOne(Name(axis));
  // Ranks of one group share what remains when their own coordinate is taken away.
  const int at = mesh.Coordinate(world.rank(), axis);
  return world.Split(world.rank() - at * Stride(mesh, axis), at, Name(axis));
}

namespace {

// "dp·cp·tp:2" of the ranks that differ along dp, along cp, and from a neighbour along tp.
std::string HoldersName(const Mesh& mesh, int copies) {
  std::vector<std::string> axes;
  if (mesh.dp > 1) axes.push_back(Name(Axis::kDp));
  if (mesh.cp > 1) axes.push_back(Name(Axis::kCp));
  if (copies > 1) axes.push_back(StrCat(Name(Axis::kTp), ":", copies));
  return absl::StrJoin(axes, "·");
}

// Where a rank stands among the holders of `copies` neighbours along tp.
int RankAmongHolders(const Mesh& mesh, int rank, int copies) {
  const int replica = mesh.Coordinate(rank, Axis::kDp) * mesh.cp + mesh.Coordinate(rank, Axis::kCp);
  return replica * copies + mesh.Coordinate(rank, Axis::kTp) % copies;
}

template <class Make>
RankGroups GroupsOf(const Mesh& mesh, int rank, const Make& holders) {
  RankGroups groups{.dp = mesh.Coordinate(rank, Axis::kDp), .replicas = holders(1)};
  for (int copies = 2; copies <= mesh.tp; ++copies) {
    if (mesh.tp % copies == 0) groups.wider[copies] = holders(copies);
  }
  return groups;
}

}  // namespace

RankGroups MakeGroups(Communicator& world, const Mesh& mesh) {
  CHECK_EQ(world.size(), mesh.size()) << "mesh " << mesh.ToString();
  const int rank = world.rank();
  RankGroups groups = GroupsOf(mesh, rank, [&](int copies) -> std::unique_ptr<Communicator> {
    const std::string name = HoldersName(mesh, copies);
    if (name.empty()) return MakeGroupOfOne(Name(Axis::kDp));
    const int at_pp = mesh.Coordinate(rank, Axis::kPp);
    const int at_tp = mesh.Coordinate(rank, Axis::kTp);
    const int first = mesh.RankOf(at_pp, 0, 0, at_tp / copies * copies);
    return world.Split(first, RankAmongHolders(mesh, rank, copies), name);
  });
  groups.world = &world;
  groups.cp = AxisGroup(world, mesh, Axis::kCp);
  groups.tp = AxisGroup(world, mesh, Axis::kTp);
  return groups;
}

RankGroups MakeMetaGroups(const Mesh& mesh, int rank) {
  RankGroups groups = GroupsOf(mesh, rank, [&](int copies) {
    return MakeMetaCommunicator(RankAmongHolders(mesh, rank, copies), mesh.replicas() * copies);
  });
  groups.meta_world = MakeMetaCommunicator(rank, mesh.size());
  groups.world = groups.meta_world.get();
  groups.cp = MakeMetaCommunicator(mesh.Coordinate(rank, Axis::kCp), mesh.cp);
  groups.tp = MakeMetaCommunicator(mesh.Coordinate(rank, Axis::kTp), mesh.tp);
  return groups;
}

}  // namespace lt2
