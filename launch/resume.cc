#include "launch/resume.h"

#include <algorithm>
#include <map>
#include <sstream>

#include "checkpoints/agreement.h"
#include "checkpoints/catalog.h"
#include "checkpoints/tensor_set.h"
#include "core/log.h"
#include "core/status_macros.h"
#include "core/strings.h"

namespace lt2 {
namespace {

std::map<std::string, std::string> FlatKeys(const std::string& toml) {
  std::map<std::string, std::string> keys;
  std::istringstream lines(toml);
  std::string line, section;
  while (std::getline(lines, line)) {
    if (line.starts_with("[")) {
      section = line.substr(1, line.find(']') - 1) + ".";
    } else if (const size_t equals = line.find(" = "); equals != std::string::npos) {
      keys[section + line.substr(0, equals)] = line.substr(equals + 3);
    }
  }
  return keys;
}

// A resumed run gets a whole skip_limit of attempts again.
OptimizerCounters CountersOf(const nlohmann::json& extra) {
  return {.skipped = extra.value("skipped", int64_t{0}),
          .skipped_in_row = 0,
          .norms = extra.value("norms", int64_t{0}),
          .norm_mean = extra.value("norm_mean", 0.0),
          .norm_variance = extra.value("norm_variance", 0.0)};
}

absl::Status CheckTokenizer(const CheckpointInfo& info, const Loader& loader,
                            const std::string& path) {
  const bool unknown = info.tokenizer_hash.empty();  // of an imported model
  if (unknown || info.tokenizer_hash == loader.tokenizer().hash()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      StrCat(path, " was trained with tokenizer '", info.tokenizer, "' (", info.tokenizer_hash,
             "), the data has '", loader.tokenizer().name(), "' (", loader.tokenizer().hash(),
             "); set data.tokenizer to the checkpoint's, or train with --resume never"));
}

// What a run holds of a checkpoint must be what is in it: else a smaller model would drop tensors.
absl::Status CheckTensors(const Checkpoint& checkpoint, std::span<const TensorPiece> pieces,
                          bool weights_only, const RunConfig& config, Communicator& world) {
  const absl::Status same =
      CheckSameTensors(checkpoint.manifest(), pieces, weights_only ? "param" : "", world);
  if (same.ok()) return same;
  std::string text =
      StrCat(checkpoint.directory(), " does not fit this configuration\n", same.message());
  for (const std::string& key : DifferentKeys(checkpoint.info().config, config.ToToml())) {
    if (key.starts_with("model.")) StrAppend(&text, "\n  ", key);
  }
  return absl::InvalidArgumentError(
      StrCat(text, "\nset the model to what the checkpoint was trained with, or ",
             weights_only ? "choose another one for --init-from" : "train with --resume never"));
}

using Resolver = absl::StatusOr<std::string> (&)(const std::string&, const WarningSink&);

// The checkpoint that the value of `flag` leads to. Collective.
absl::StatusOr<std::string> Lookup(std::string_view flag, const std::string& value,
                                   Resolver resolve, Communicator& world) {
  absl::StatusOr<std::string> found = "";
  if (world.rank() == 0) {
    found = resolve(value, LogWarn);
    if (!found.ok()) {
      found = absl::Status(found.status().code(), StrCat(flag, " ", found.status().message()));
    }
  }
  return BroadcastResult(world, found);
}

// The run's own checkpoint to go on from; "" for none. Collective.
absl::StatusOr<std::string> ToResume(const std::string& checkpoints_dir, const std::string& resume,
                                     Communicator& world) {
  if (resume.empty()) {
    return absl::InvalidArgumentError(
        "--resume is empty; it may be auto, never, or the path of a checkpoint or a run directory");
  }
  if (resume == "never") return "";
  if (resume != "auto") return Lookup("--resume", resume, ResolveSound, world);
  absl::StatusOr<std::string> newest = FindNewestSound(checkpoints_dir, world, LogWarn);
  if (absl::IsNotFound(newest.status())) return "";
  return newest;
}

// Loads the checkpoint at `path`, which was verified. Collective.
absl::StatusOr<StartingPoint> LoadFrom(const std::string& path, bool weights_only,
                                       const RunConfig& config, const Loader& loader,
                                       TrainStep& step, Communicator& world) {
  absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(path);
  RETURN_IF_ERROR(Agree(world, checkpoint.status()));
  const CheckpointInfo& info = checkpoint->info();
  RETURN_IF_ERROR(CheckTokenizer(info, loader, path));
  std::vector<TensorPiece> pieces = PiecesOf(step, /*owned=*/false);
  if (weights_only) std::erase_if(pieces, [](const TensorPiece& p) { return p.group != "param"; });
  RETURN_IF_ERROR(CheckTensors(*checkpoint, pieces, weights_only, config, world));
  RETURN_IF_ERROR(Agree(world, checkpoint->Load(pieces, {.convert = true})));
  StartingPoint start{.state = {}, .checkpoint = path, .mesh = info.mesh, .differences = {}};
  if (weights_only) return start;

  step.optimizer().set_counters(CountersOf(info.extra));
  start.state = {.step = info.step, .tokens = info.tokens, .samples = info.samples};
  start.differences = DifferentKeys(info.config, config.ToToml());
  if (info.data != loader.fingerprint()) {
    start.differences.push_back(
        "data: what sample numbers mean has changed (sources, weights, sequence, documents or "
        "seed), so samples may repeat");
  }
  return start;
}

}  // namespace

absl::Status Agree(Communicator& world, const absl::Status& status) {
  absl::StatusOr<std::string> mine = std::string();
  if (!status.ok()) mine = status;
  const std::vector<absl::StatusOr<std::string>> results = GatherResults(world, mine);
  const auto failed =
      std::find_if(results.begin(), results.end(), [](const auto& result) { return !result.ok(); });
  if (failed == results.end()) return absl::OkStatus();
  const bool alike = std::all_of(results.begin(), results.end(), [&](const auto& result) {
    return result.status() == failed->status();
  });
  if (alike) return failed->status();
  const int rank = static_cast<int>(failed - results.begin());
  const std::vector<std::string> hosts = world.GatherStrings(world.host());
  return absl::Status(failed->status().code(),
                      StrCat("rank ", rank, " (", hosts[rank], "): ", failed->status().message()));
}

std::vector<TensorPiece> PiecesOf(TrainStep& step, bool owned) {
  Optimizer& optimizer = step.optimizer();
  std::vector<TensorPiece> pieces;
  for (const StatePiece& piece : owned ? optimizer.Owned() : optimizer.Held()) {
    const Param* param = step.model().params().Find(piece.name);
    pieces.push_back({.group = piece.group,
                      .name = piece.name,
                      .shape = param->spec.shape,
                      .box = piece.box,
                      .tensor = piece.data});
  }
  return pieces;
}

nlohmann::json ToJson(const OptimizerCounters& counters) {
  return {{"skipped", counters.skipped},
          {"skipped_in_row", counters.skipped_in_row},
          {"norms", counters.norms},
          {"norm_mean", counters.norm_mean},
          {"norm_variance", counters.norm_variance}};
}

std::vector<std::string> DifferentKeys(const std::string& then, const std::string& now) {
  const std::map<std::string, std::string> a = FlatKeys(then), b = FlatKeys(now);
  std::vector<std::string> different;
  for (const auto& [key, value] : b) {
    const auto old = a.find(key);
    if (old == a.end()) {
      different.push_back(StrCat(key, ": (absent) -> ", value));
    } else if (old->second != value) {
      different.push_back(StrCat(key, ": ", old->second, " -> ", value));
    }
  }
  for (const auto& [key, value] : a) {
    if (!b.contains(key)) different.push_back(StrCat(key, ": ", value, " -> (absent)"));
  }
  return different;
}

absl::StatusOr<StartingPoint> LoadStart(const std::string& checkpoints_dir,
                                        const std::string& resume, const std::string& init_from,
                                        const RunConfig& config, const Loader& loader,
                                        TrainStep& step, Communicator& world) {
  ASSIGN_OR_RETURN(std::string path, ToResume(checkpoints_dir, resume, world));
  const bool resumes = !path.empty();
  if (resumes && !init_from.empty()) {
    RETURN_IF_ERROR(Lookup("--init-from", init_from, ResolveCheckpoint, world).status());
    LogInfo(StrCat("--init-from ", init_from, " is not used: the run goes on from ", path));
  } else if (!init_from.empty()) {
    ASSIGN_OR_RETURN(path, Lookup("--init-from", init_from, ResolveSound, world));
  }
  StartingPoint start;
  if (!path.empty()) {
    ASSIGN_OR_RETURN(start, LoadFrom(path, /*weights_only=*/!resumes, config, loader, step, world));
  }
  absl::Status aside;
  if (world.rank() == 0) aside = SetAsideAfter(checkpoints_dir, resumes ? start.state.step : -1);
  RETURN_IF_ERROR(Agree(world, aside));
  return start;
}

}  // namespace lt2
