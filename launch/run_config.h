// A whole configuration: TOML in, typed sections out, and every check that needs no data.
//
//   ASSIGN_OR_RETURN(RunConfig config, LoadRunConfig("lt2-tiny", {"model.loops=4"}));
//   ASSIGN_OR_RETURN(Mesh mesh, MeshFor(config, ranks));
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "data/data_config.h"
#include "launch/schedule.h"
#include "launch/sections.h"
#include "model/config.h"
#include "parallel/mesh.h"
#include "parallel/optimizer_config.h"
#include "parallel/parallel_config.h"

namespace lt2 {

struct RunConfig {
  RunSection run;
  ModelConfig model;
  DataConfig data;
  BatchConfig batch;
  OptimizerConfig optimizer;
  ScheduleConfig schedule;
  ParallelConfig parallel;
  CheckpointConfig checkpoint;
  LogConfig log;

  // The resolved configuration: no preset is left, every default is written out, input paths are
  // absolute where they exist. Reading it gives an equal configuration.
  std::string ToToml() const;

  // Steps in schedule.total, rounded up.
  int64_t total_steps() const { return schedule.total.Steps(batch.tokens); }
};

// `config`: a file or a preset's name. `sets`: "section.key=value", the last one wins. NotFound or
// InvalidArgument; every mistake is listed, a line each.
absl::StatusOr<RunConfig> LoadRunConfig(const std::string& config,
                                        const std::vector<std::string>& sets);
// The same from text; `source` names it in messages, and relative input paths are looked up from
// its folder first.
absl::StatusOr<RunConfig> ParseRunConfig(std::string_view text, const std::string& source,
                                         const std::vector<std::string>& sets = {});

// The mesh of [parallel] for so many ranks. InvalidArgument: one message with everything that is
// wrong with it and every mesh of so many ranks that is legal (launch/legal_mesh.h).
absl::StatusOr<Mesh> MeshFor(const RunConfig& config, int ranks);

}  // namespace lt2
