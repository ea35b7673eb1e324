// How ranks are arranged: pipeline, data, context and tensor parallel, pp slowest and tp fastest.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "parallel/communicator.h"
#include "parallel/pipeline_links.h"

namespace lt2 {

enum class Axis : uint8_t { kPp, kDp, kCp, kTp };  // slowest first
const char* Name(Axis axis);

struct Mesh {
  int pp = 1, dp = 1, cp = 1, tp = 1;

  // "dp=2,cp=2": axes not named are 1. InvalidArgument for an unknown axis or a size below 1.
  static absl::StatusOr<Mesh> Parse(std::string_view text);
  std::string ToString() const;  // all four, parses back equal

  int size() const { return pp * dp * cp * tp; }
  // Ranks that hold the same parts of all parameters.
  int replicas() const { return dp * cp; }
  int Extent(Axis axis) const;
  // A rank's coordinate along an axis, and the rank with these coordinates.
  int Coordinate(int rank, Axis axis) const;
  int RankOf(int at_pp, int at_dp, int at_cp, int at_tp) const;
  bool operator==(const Mesh&) const = default;
};

// The ranks that differ from this one along `axis` only, in order of their coordinate. Every rank
// of `world` (mesh.size() ranks) calls it.
std::unique_ptr<Communicator> AxisGroup(Communicator& world, const Mesh& mesh, Axis axis);

// The groups that a rank works in.
struct RankGroups {
  int dp = 0;                                // this rank's coordinate
  Communicator* world = nullptr;             // all that train together
  std::unique_ptr<Communicator> meta_world;  // which a dry run owns
  std::unique_ptr<Communicator> replicas;    // dp and cp, cp fastest
  std::unique_ptr<Communicator> cp;          // those that share a row of tokens
  std::unique_ptr<Communicator> tp;          // those that share layers
  std::unique_ptr<Communicator> pp;          // the stages of a pipeline
  PipelineLinks links;                       // to the neighbours among those
  // By c > 1, a divisor of tp: dp, cp and c neighbours along tp, those fastest.
  std::map<int, std::unique_ptr<Communicator>> wider;
  // By c: the same of all stages, where there are several.
  std::map<int, std::unique_ptr<Communicator>> across_stages;
  // The ranks among which the gradients of a parameter are summed that `copies` neighbours along tp
  // hold the same part of, in this stage or in every one.
  Communicator& Holders(int copies, bool all_stages = false) const {
    if (all_stages && !across_stages.empty()) return *across_stages.at(copies);
    return copies == 1 ? *replicas : *wider.at(copies);
  }
};
// Every rank of `world` calls it.
RankGroups MakeGroups(Communicator& world, const Mesh& mesh);
// For a dry run as rank `rank` of the mesh.
RankGroups MakeMetaGroups(const Mesh& mesh, int rank);

}  // namespace lt2
