#include "checkpoints/catalog.h"

#include <algorithm>
#include <charconv>

#include "absl/strings/str_format.h"
#include "checkpoints/reader.h"
#include "checkpoints/verify.h"
#include "core/file.h"
#include "core/log.h"
#include "core/status_macros.h"
#include "core/strings.h"

namespace lt2 {
namespace {

constexpr std::string_view kPrefix = "step-";
constexpr size_t kDigits = 10;

// By its manifest, or by its name where the manifest is lost.
bool IsCheckpoint(std::string path) {
  if (FileSystem::Get().Exists(JoinPath(path, kManifestFile))) return true;
  while (path.ends_with('/')) path.pop_back();
  return StepOfName(path.substr(path.rfind('/') + 1)) && FileSystem::Get().IsDirectory(path);
}

// The folder that holds step directories: `path` itself, or its checkpoints/.
std::string RootOf(const std::string& path) {
  const std::string inner = JoinPath(path, "checkpoints");
  return FileSystem::Get().IsDirectory(inner) ? inner : path;
}

absl::Status CheckDirectory(const std::string& path) {
  if (FileSystem::Get().IsDirectory(path)) return absl::OkStatus();
  return absl::NotFoundError(StrCat(path, ": no such checkpoint or run directory"));
}

absl::Status NoCheckpoint(const std::string& root) {
  return absl::NotFoundError(StrCat(root, ": there is no checkpoint"));
}

CheckpointSummary Summarise(const StepDirectory& directory, bool verify,
                            const ScanOptions& options) {
  CheckpointSummary summary{.directory = directory, .info = {}, .soundness = {}};
  const absl::StatusOr<Manifest> manifest = ReadManifest(directory.path);
  if (!manifest.ok()) {
    summary.soundness = manifest.status();
    return summary;
  }
  summary.info = manifest->info;
  summary.bytes = manifest->bytes();
  summary.tensors = static_cast<int64_t>(manifest->tensors.size());
  if (verify) {
    const absl::StatusOr<VerifyReport> report = Verify(directory.path, options);
    summary.soundness = report.ok() ? report->status() : report.status();
  } else {
    summary.soundness = Checkpoint::Open(directory.path).status();
  }
  return summary;
}

// "PATH.abandoned-K" with the first K that is free.
std::string AbandonedName(const std::string& path) {
  for (int k = 1;; ++k) {
    std::string name = StrCat(path, ".abandoned-", k);
    if (!FileSystem::Get().Exists(name)) return name;
  }
}

// Moves a checkpoint out of sight before its files go, so that a kill leaves no half of it.
absl::Status Delete(const StepDirectory& directory) {
  const std::string doomed = StrCat(directory.path, ".tmp-deleted");
  RETURN_IF_ERROR(FileSystem::Get().RemoveAll(doomed));
  RETURN_IF_ERROR(FileSystem::Get().Rename(directory.path, doomed));
  return FileSystem::Get().RemoveAll(doomed);
}

}  // namespace

std::string StepName(int64_t step) { return absl::StrFormat("step-%010d", step); }

std::optional<int64_t> StepOfName(std::string_view name) {
  if (name.size() < kPrefix.size() + kDigits || !name.starts_with(kPrefix)) return std::nullopt;
  if (name[kPrefix.size()] == '-') return std::nullopt;  // from_chars takes a sign
  int64_t step = 0;
  const char* end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + kPrefix.size(), end, step);
  if (error != std::errc() || stop != end) return std::nullopt;
  return step;
}

absl::StatusOr<std::vector<StepDirectory>> ListSteps(const std::string& root) {
  std::vector<StepDirectory> steps;
  const absl::StatusOr<std::vector<std::string>> names = FileSystem::Get().List(root);
  if (absl::IsNotFound(names.status())) return steps;
  RETURN_IF_ERROR(names.status());
  for (const std::string& name : *names) {
    if (const auto step = StepOfName(name)) steps.push_back({*step, JoinPath(root, name)});
  }
  std::sort(steps.begin(), steps.end(),
            [](const StepDirectory& a, const StepDirectory& b) { return a.step < b.step; });
  return steps;
}

absl::StatusOr<std::vector<std::string>> NewestFirst(const std::string& root) {
  ASSIGN_OR_RETURN(const std::vector<StepDirectory> steps, ListSteps(root));
  std::vector<std::string> paths;
  for (auto it = steps.rbegin(); it != steps.rend(); ++it) paths.push_back(it->path);
  return paths;
}

absl::StatusOr<std::string> FindNewestSound(const std::string& root, const WarningSink& warn) {
  ASSIGN_OR_RETURN(const std::vector<std::string> paths, NewestFirst(root));
  if (paths.empty()) return NoCheckpoint(root);
  const auto verified = [](const std::string& path) -> absl::StatusOr<std::string> {
    ASSIGN_OR_RETURN(const VerifyReport report, Verify(path));
    RETURN_IF_ERROR(report.status());
    return path;
  };
  return FirstSound(paths, "choose another run directory", warn, verified);
}

std::string NewestThatOpens(const std::string& root) {
  const absl::StatusOr<std::vector<std::string>> paths = NewestFirst(root);
  if (!paths.ok()) return "";
  for (const std::string& path : *paths) {
    if (Checkpoint::Open(path).ok()) return path;
  }
  return "";
}

absl::Status RemoveStale(const std::string& root) {
  FileSystem& files = FileSystem::Get();
  if (!files.IsDirectory(root)) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::vector<std::string> names, files.List(root));
  for (const std::string& name : names) {
    const size_t dot = name.find('.');
    if (dot == std::string::npos || !StepOfName(name.substr(0, dot))) continue;
    const std::string path = JoinPath(root, name);
    const std::string published = JoinPath(root, name.substr(0, dot));
    const std::string_view kind = std::string_view(name).substr(dot);
    if (kind.starts_with(".old-") && !files.Exists(published)) {
      RETURN_IF_ERROR(files.Rename(path, published));
    } else if (kind.starts_with(".tmp-") || kind.starts_with(".old-")) {
      RETURN_IF_ERROR(files.RemoveAll(path));
    }
  }
  return absl::OkStatus();
}

absl::Status SetAsideAfter(const std::string& root, int64_t step) {
  FileSystem& files = FileSystem::Get();
  ASSIGN_OR_RETURN(const std::vector<StepDirectory> steps, ListSteps(root));
  std::string moved;
  for (const StepDirectory& directory : steps) {
    if (directory.step <= step) continue;
    const std::string aside = AbandonedName(directory.path);
    RETURN_IF_ERROR(files.Rename(directory.path, aside));
    StrAppend(&moved, moved.empty() ? "" : ", ", aside.substr(aside.rfind('/') + 1));
  }
  if (moved.empty()) return absl::OkStatus();
  LogWarn(StrCat(
      root,
      ": the run goes on from before these checkpoints; kept, but no longer its own: ", moved));
  return files.Sync(root);
}

absl::Status ApplyRetention(const std::string& root, const Retention& retention,
                            std::string_view published) {
  ASSIGN_OR_RETURN(const std::vector<StepDirectory> steps, ListSteps(root));
  const int64_t count = static_cast<int64_t>(steps.size());
  const int64_t first_kept = count - std::max<int64_t>(retention.keep_last, 1);
  if (first_kept <= 0) return absl::OkStatus();
  const std::string newest = NewestThatOpens(root);
  for (int64_t i = 0; i < first_kept; ++i) {
    const StepDirectory& directory = steps[i];
    const bool milestone = retention.keep_every > 0 && directory.step % retention.keep_every == 0;
    if (milestone || directory.path == newest || directory.path == published) continue;
    RETURN_IF_ERROR(Delete(directory));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<CheckpointSummary>> ListCheckpoints(const std::string& path, bool verify,
                                                               const ScanOptions& options) {
  std::vector<CheckpointSummary> summaries;
  if (IsCheckpoint(path)) {
    summaries.push_back(Summarise({.step = 0, .path = path}, verify, options));
    summaries[0].directory.step = summaries[0].info.step;
    return summaries;
  }
  ASSIGN_OR_RETURN(const std::vector<StepDirectory> steps, ListSteps(RootOf(path)));
  if (steps.empty()) {
    return absl::NotFoundError(
        StrCat(path, ": neither a checkpoint nor a run directory that holds one"));
  }
  for (const StepDirectory& step : steps) summaries.push_back(Summarise(step, verify, options));
  return summaries;
}

absl::StatusOr<std::string> ResolveCheckpoint(const std::string& path, const WarningSink& warn) {
  if (IsCheckpoint(path)) return path;
  RETURN_IF_ERROR(CheckDirectory(path));
  return FindNewestSound(RootOf(path), warn);
}

absl::StatusOr<std::vector<std::string>> CheckpointsAt(const std::string& path) {
  if (IsCheckpoint(path)) return std::vector<std::string>{path};
  RETURN_IF_ERROR(CheckDirectory(path));
  const std::string root = RootOf(path);
  ASSIGN_OR_RETURN(std::vector<std::string> paths, NewestFirst(root));
  if (paths.empty()) return NoCheckpoint(root);
  return paths;
}

}  // namespace lt2
