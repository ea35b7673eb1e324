// What the sub-verbs of `lt2 ckpt` share, and those that have a file of their own.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "checkpoints/reader.h"
#include "checkpoints/scan.h"
#include "tools/progress_line.h"
#include "tools/verb.h"

namespace lt2 {

struct CkptSubverb {
  CLI::App* app;  // knows whether it was typed
  VerbBody body;
};
CkptSubverb AddCkptShow(CLI::App& ckpt);
CkptSubverb AddCkptDiff(CLI::App& ckpt);
CkptSubverb AddCkptReshard(CLI::App& ckpt);
CkptSubverb AddCkptImport(CLI::App& ckpt);
CkptSubverb AddCkptExport(CLI::App& ckpt);

// What a checkpoint on a command line may be.
inline constexpr char kCheckpointArgument[] =
    "a run directory, its checkpoints folder, or one checkpoint";
std::string MiB(int64_t bytes);  // "1.5 MiB"
// Opens it: of a run the newest sound one.
absl::StatusOr<Checkpoint> OpenCheckpoint(const std::string& path);
// Reports to `line`, which must outlive the scan.
ScanOptions ShowingProgress(ProgressLine& line);

}  // namespace lt2
