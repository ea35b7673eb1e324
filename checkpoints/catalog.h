// The checkpoints of a run: which there are, which is the newest sound one, what may be deleted.
//
// A directory named step-NNNNNNNNNN is a published checkpoint; step-NNNNNNNNNN.tmp-ID is one being
// written or deleted, step-NNNNNNNNNN.old-ID one being replaced, step-NNNNNNNNNN.abandoned-K one
// that the run no longer continues from.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoints/manifest.h"
#include "checkpoints/scan.h"
#include "core/strings.h"

namespace lt2 {

std::string StepName(int64_t step);                        // "step-0000001000"
std::optional<int64_t> StepOfName(std::string_view name);  // of exactly such a name

struct StepDirectory {
  int64_t step = 0;
  std::string path;
};
// The published checkpoints under `root`, oldest first; none if `root` does not exist.
absl::StatusOr<std::vector<StepDirectory>> ListSteps(const std::string& root);

// Their paths, newest first.
absl::StatusOr<std::vector<std::string>> NewestFirst(const std::string& root);

using WarningSink = std::function<void(const std::string&)>;

// What `take` makes of the first of `paths` (one at least) that it finds sound. It returns DataLoss
// of a damaged one and NotFound of a file in a checkpoint's place, or where one was removed
// meanwhile: `warn` is told, and the next path is taken. DataLoss, which ends with `advice`, where
// none is left. Any other error is returned, for it is no reason to take an older checkpoint.
template <class Take>
std::invoke_result_t<Take, const std::string&> FirstSound(std::span<const std::string> paths,
                                                          std::string_view advice,
                                                          const WarningSink& warn,
                                                          const Take& take) {
  for (size_t i = 0;; ++i) {
    auto taken = take(paths[i]);
    if (!absl::IsDataLoss(taken.status()) && !absl::IsNotFound(taken.status())) return taken;
    const std::string why(taken.status().message());
    if (i + 1 == paths.size()) {
      return absl::DataLossError(StrCat(why, "\nno sound checkpoint is left: ", advice));
    }
    warn(StrCat(why, "\n  looking for an older checkpoint"));
  }
}

// The newest checkpoint all of whose bytes match its manifest. Damaged ones are skipped with a
// warning naming file and tensor. NotFound if there is no checkpoint; DataLoss if all are damaged;
// InvalidArgument if the newest one needs a newer program; else what kept one from being read.
absl::StatusOr<std::string> FindNewestSound(const std::string& root, const WarningSink& warn);

// The path of the newest checkpoint that opens (manifest, sizes and frames), "" if none does.
std::string NewestThatOpens(const std::string& root);

// Removes what dead runs left half written, and puts back what they had moved away to replace.
// Only for the holder of the run's lock, before it saves anything.
absl::Status RemoveStale(const std::string& root);

// Renames the published checkpoints of steps after `step` (-1: all) to step-NNNNNNNNNN.abandoned-K:
// the run goes on from before them, so they belong to another course of it. One line of the log
// names them; nothing deletes them. Only for the holder of the run's lock, before it saves
// anything.
absl::Status SetAsideAfter(const std::string& root, int64_t step);

struct Retention {
  int64_t keep_last = 2;   // at least 1
  int64_t keep_every = 0;  // also every checkpoint whose step is a multiple of it; 0: none
};
// Deletes what retention does not keep, never the newest checkpoint that opens nor `published`, the
// path of the one just saved.
absl::Status ApplyRetention(const std::string& root, const Retention& retention,
                            std::string_view published);

// A row of `lt2 ckpt ls`.
struct CheckpointSummary {
  StepDirectory directory;
  CheckpointInfo info;  // empty if the manifest could not be read
  int64_t bytes = 0;
  int64_t tensors = 0;
  absl::Status soundness;  // OK, or what is wrong
};
// Oldest first. `path` is a run directory, its checkpoints folder or one checkpoint. `verify` reads
// every byte; else only manifest, sizes and frames are checked. NotFound if there is nothing.
absl::StatusOr<std::vector<CheckpointSummary>> ListCheckpoints(const std::string& path, bool verify,
                                                               const ScanOptions& options = {});
// One directory of tensors from what a user names: a checkpoint itself, or the newest sound one of
// a run directory or of a checkpoints folder. NotFound if `path` is none of these.
absl::StatusOr<std::string> ResolveCheckpoint(const std::string& path, const WarningSink& warn);
// What a user names without a look inside: a checkpoint itself, or all of a run directory or of a
// checkpoints folder, newest first. NotFound if `path` is none of these or there is no checkpoint.
absl::StatusOr<std::vector<std::string>> CheckpointsAt(const std::string& path);

}  // namespace lt2
