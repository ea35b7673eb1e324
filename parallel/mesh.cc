#include "parallel/mesh.h"

#include <array>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
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
  std::string text;
  for (Axis axis : kAxes) {
    if (axis == Axis::kDp || axis == Axis::kCp || Extent(axis) == 1) continue;
    StrAppend(&text, text.empty() ? "" : "\n", Name(axis), " = ", Extent(axis),
              " is not supported by this version; set parallel.", Name(axis), " = 1");
  }
  return text.empty() ? absl::OkStatus() : absl::InvalidArgumentError(text);
}

std::unique_ptr<Communicator> AxisGroup(Communicator& world, const Mesh& mesh, Axis axis) {
  CHECK_EQ(world.size(), mesh.size()) << "mesh " << mesh.ToString();
  if (mesh.Extent(axis) == 1) return MakeGroupOfOne(Name(axis));
  // Ranks of one group share what remains when their own coordinate is taken away.
  const int at = mesh.Coordinate(world.rank(), axis);
  return world.Split(world.rank() - at * Stride(mesh, axis), at, Name(axis));
}

RankGroups MakeGroups(Communicator& world, const Mesh& mesh) {
  CHECK_EQ(world.size(), mesh.size()) << "mesh " << mesh.ToString();
  const int dp = mesh.Coordinate(world.rank(), Axis::kDp);
  const int cp = mesh.Coordinate(world.rank(), Axis::kCp);
  const int at = dp * mesh.cp + cp;
  RankGroups groups{.dp = dp};
  if (mesh.cp == 1) {
    groups.replicas = AxisGroup(world, mesh, Axis::kDp);
  } else {
    const int first = world.rank() - dp * Stride(mesh, Axis::kDp) - cp * Stride(mesh, Axis::kCp);
    groups.replicas = world.Split(first, at, mesh.dp == 1 ? "cp" : "dp·cp");
  }
  groups.cp = AxisGroup(world, mesh, Axis::kCp);
  return groups;
}

RankGroups MakeMetaGroups(const Mesh& mesh, int rank) {
  return {.dp = rank / mesh.cp,
          .replicas = MakeMetaCommunicator(rank, mesh.replicas()),
          .cp = MakeMetaCommunicator(rank % mesh.cp, mesh.cp)};
}

}  // namespace lt2
