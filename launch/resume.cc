#include "launch/resume.h"

#include <map>
#include <sstream>

#include "checkpoints/agreement.h"
#include "checkpoints/catalog.h"
#include "checkpoints/tensor_set.h"
#include "core/log.h"
#include "core/status_macros.h"
#include "core/strings.h"
#include "parallel/reduce_scalars.h"

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

// Updates count in AdamW's bias correction; what their norms were decides about skips.
absl::Status CheckCounters(const CheckpointInfo& info, const std::string& path) {
  for (const char* key : {"norms", "norm_mean", "norm_variance"}) {
    if (info.extra.contains(key) && info.extra[key].is_number()) continue;
    return absl::InvalidArgumentError(StrCat(
        path, ": its manifest lacks extra.", key,
        ", without which the run would go on with other losses; train from its weights alone: ",
        "--resume never --init-from ", path));
  }
  return absl::OkStatus();
}

// A resumed run gets a whole skip_limit of attempts again.
OptimizerCounters CountersOf(const nlohmann::json& extra) {
  return {.skipped = extra.value("skipped", int64_t{0}),
          .skipped_in_row = 0,
          .norms = extra.at("norms").get<int64_t>(),
          .norm_mean = extra.at("norm_mean").get<double>(),
          .norm_variance = extra.at("norm_variance").get<double>()};
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

// The checkpoints that the value of `flag` leads to, newest first. Collective.
absl::StatusOr<std::vector<std::string>> Lookup(std::string_view flag, const std::string& value,
                                                Communicator& world) {
  absl::StatusOr<std::vector<std::string>> found;
  if (world.rank() == 0) found = CheckpointsAt(value);
  if (!found.ok()) {
    found = absl::Status(found.status().code(), StrCat(flag, " ", found.status().message()));
  }
  return BroadcastList(world, found);
}

// The checkpoints of steps before `step`, newest first.
absl::StatusOr<std::vector<std::string>> NewestBefore(const std::string& checkpoints_dir,
                                                      int64_t step) {
  ASSIGN_OR_RETURN(std::vector<StepDirectory> steps, ListSteps(checkpoints_dir));
  std::vector<std::string> paths;
  for (auto it = steps.rbegin(); it != steps.rend(); ++it) {
    if (it->step < step) paths.push_back(it->path);
  }
  if (!paths.empty()) return paths;
  return absl::NotFoundError(
      StrCat("--replay ", step, ": ", checkpoints_dir,
             " has no checkpoint of an earlier step; keep more of them with checkpoint.keep_last "
             "or checkpoint.keep_every"));
}

// The run's own checkpoints that may be gone on from, newest first. Collective.
absl::StatusOr<std::vector<std::string>> ToResume(const std::string& checkpoints_dir,
                                                  const StartOptions& options,
                                                  Communicator& world) {
  const std::string& resume = options.resume;
  if (resume.empty()) {
    return absl::InvalidArgumentError(
        "--resume is empty; it may be auto, never, or the path of a checkpoint or a run directory");
  }
  if (resume == "never") return std::vector<std::string>();
  if (resume != "auto") return Lookup("--resume", resume, world);
  absl::StatusOr<std::vector<std::string>> own = std::vector<std::string>();
  if (world.rank() == 0) {
    own = options.replay > 0 ? NewestBefore(checkpoints_dir, options.replay)
                             : NewestFirst(checkpoints_dir);
  }
  return BroadcastList(world, own);
}

// Loads the checkpoint at `path`, or tells what is damaged of it. Collective.
absl::StatusOr<StartingPoint> LoadFrom(const std::string& path, bool weights_only,
                                       const RunConfig& config, const Loader& loader,
                                       TrainStep& step, Communicator& world) {
  ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::Open(path, world));
  const CheckpointInfo& info = checkpoint.info();
  RETURN_IF_ERROR(CheckTokenizer(info, loader, path));
  if (!weights_only) RETURN_IF_ERROR(CheckCounters(info, path));
  std::vector<TensorPiece> pieces = PiecesOf(step, /*owned=*/false);
  if (weights_only) std::erase_if(pieces, [](const TensorPiece& p) { return p.group != "param"; });
  RETURN_IF_ERROR(CheckTensors(checkpoint, pieces, weights_only, config, world));
  RETURN_IF_ERROR(checkpoint.Load(pieces, {.convert = true}));
  StartingPoint start;
  start.checkpoint = path;
  start.mesh = info.mesh;
  auto bytes_read = static_cast<double>(checkpoint.bytes_read());
  ReduceScalars(world, {&bytes_read, 1}, {});
  start.bytes_read = static_cast<int64_t>(bytes_read);
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
                                        const StartOptions& options, const RunConfig& config,
                                        const Loader& loader, TrainStep& step,
                                        Communicator& world) {
  ASSIGN_OR_RETURN(std::vector<std::string> paths, ToResume(checkpoints_dir, options, world));
  const bool resumes = !paths.empty();
  const std::string& init_from = options.init_from;
  if (!init_from.empty()) {
    ASSIGN_OR_RETURN(std::vector<std::string> weights, Lookup("--init-from", init_from, world));
    if (!resumes) paths = std::move(weights);
  }
  StartingPoint start;
  if (!paths.empty()) {
    const char* advice = resumes ? "name another one, or begin anew in another run directory"
                                 : "choose another one for --init-from";
    const auto warn = [&](const std::string& text) {
      if (world.rank() == 0) LogWarn(text);
    };
    // What was loaded of a damaged one does not stay: the next one has the same tensors.
    const auto load = [&](const std::string& path) {
      return LoadFrom(path, /*weights_only=*/!resumes, config, loader, step, world);
    };
    ASSIGN_OR_RETURN(start, FirstSound(paths, advice, warn, load));
  }
  if (resumes && !init_from.empty()) {
    LogInfo(
        StrCat("--init-from ", init_from, " is not used: the run goes on from ", start.checkpoint));
  }
  if (options.replay > 0) return start;
  absl::Status aside;
  if (world.rank() == 0) aside = SetAsideAfter(checkpoints_dir, resumes ? start.state.step : -1);
  RETURN_IF_ERROR(Agree(world, aside));
  return start;
}

}  // namespace lt2
