// Where a run starts: nothing, another run's weights, or a checkpoint of its own.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoints/reader.h"
#include "launch/run_config.h"
#include "launch/train_step.h"
#include "parallel/communicator.h"

namespace lt2 {

// How far a run is. Everything that is not in here is a function of the configuration and this.
struct RunState {
  int64_t step = 0;     // finished updates
  int64_t tokens = 0;   // consumed
  int64_t samples = 0;  // consumed: the position in the data
};

struct StartOptions {
  std::string resume = "auto";  // auto, never, or a path
  std::string init_from;        // a path; "": none
  // > 0: auto finds checkpoints of earlier steps than this one alone, and none is set aside.
  int64_t replay = 0;
};

struct StartingPoint {
  RunState state;
  std::string checkpoint;                // "" if none was loaded
  std::string mesh;                      // that wrote it
  std::vector<std::string> differences;  // "section.key: then -> now"
  int64_t bytes_read = 0;                // of the checkpoint, by all ranks
};

// The pieces of an optimizer as checkpoints see them. `owned`: what this rank saves, else all it
// holds.
std::vector<TensorPiece> PiecesOf(TrainStep& step, bool owned);

// Loads what `resume` and `init_from` ask for into `step`. Where `resume` finds a checkpoint
// init_from is looked up and not used; of init_from's the parameters alone are read. What is loaded
// is read once by all ranks together and held against its hashes; where one is found damaged all
// leave that checkpoint with a warning for the next older one of the run, which replaces all that
// was loaded. At success the directory's checkpoints of later steps than the starting one (of every
// step where the run begins anew) are set aside. Collective. After an error `step` is not to be
// used. NotFound: a path leads to no checkpoint, or there is none before the replayed step;
// InvalidArgument: the stored tensors are not those of the configuration, the tokenizer differs,
// counters of the optimizer are missing, or `resume` is empty; DataLoss: the checkpoint that was
// named, or every one of the run, is damaged.
absl::StatusOr<StartingPoint> LoadStart(const std::string& checkpoints_dir,
                                        const StartOptions& options, const RunConfig& config,
                                        const Loader& loader, TrainStep& step, Communicator& world);

// Counters that a checkpoint carries along.
nlohmann::json ToJson(const OptimizerCounters& counters);

// Keys whose values differ between two configurations written by RunConfig::ToToml.
std::vector<std::string> DifferentKeys(const std::string& then, const std::string& now);

}  // namespace lt2
