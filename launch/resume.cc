#include "launch/resume.h"

#include <map>
#include <sstream>

#include "checkpoints/agreement.h"
#include "checkpoints/catalog.h"
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

OptimizerCounters CountersOf(const nlohmann::json& extra) {
  return {.skipped = extra.value("skipped", int64_t{0}),
          .skipped_in_row = extra.value("skipped_in_row", int64_t{0}),
          .norms = extra.value("norms", int64_t{0}),
          .norm_mean = extra.value("norm_mean", 0.0),
          .norm_variance = extra.value("norm_variance", 0.0)};
}

absl::Status CheckTokenizer(const CheckpointInfo& info, const Loader& loader,
                            const std::string& path) {
  if (info.tokenizer_hash == loader.tokenizer().hash()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      StrCat(path, " was trained with tokenizer '", info.tokenizer, "' (", info.tokenizer_hash,
             "), the data has '", loader.tokenizer().name(), "' (", loader.tokenizer().hash(),
             "); set data.tokenizer to the checkpoint's, or train with --resume never"));
}

// Which checkpoint to load; "" for none.
absl::StatusOr<std::string> ChooseCheckpoint(const std::string& checkpoints_dir,
                                             const std::string& resume, Communicator& world) {
  const auto warn = [](const std::string& text) { LogWarn(text); };
  if (resume == "never") return "";
  if (resume == "auto") {
    absl::StatusOr<std::string> newest = FindNewestSound(checkpoints_dir, world, warn);
    if (absl::IsNotFound(newest.status())) return "";
    return newest;
  }
  return BroadcastResult(
      world, world.rank() == 0 ? ResolveCheckpoint(resume, warn) : absl::StatusOr<std::string>(""));
}

}  // namespace

absl::Status Agree(Communicator& world, const absl::Status& status) {
  absl::StatusOr<std::string> mine = std::string();
  if (!status.ok()) mine = status;
  for (const absl::StatusOr<std::string>& result : GatherResults(world, mine)) {
    if (!result.ok()) return result.status();
  }
  return absl::OkStatus();
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
  ASSIGN_OR_RETURN(std::string path, ChooseCheckpoint(checkpoints_dir, resume, world));
  const bool weights_only = path.empty() && !init_from.empty();
  if (weights_only) {
    ASSIGN_OR_RETURN(path, ChooseCheckpoint(checkpoints_dir, init_from, world));
  }
  StartingPoint start;
  if (path.empty()) return start;

  absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(path);
  RETURN_IF_ERROR(Agree(world, checkpoint.status()));
  const CheckpointInfo& info = checkpoint->info();
  RETURN_IF_ERROR(CheckTokenizer(info, loader, path));
  std::vector<TensorPiece> pieces = PiecesOf(step, /*owned=*/false);
  if (weights_only) std::erase_if(pieces, [](const TensorPiece& p) { return p.group != "param"; });
  RETURN_IF_ERROR(Agree(world, checkpoint->Load(pieces, {.convert = true})));
  start.checkpoint = path;
  start.mesh = info.mesh;
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

}  // namespace lt2
