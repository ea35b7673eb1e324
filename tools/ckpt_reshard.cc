// lt2 ckpt reshard: a checkpoint written again for another number of ranks.
#include <iostream>
#include <memory>

#include "absl/strings/str_format.h"
#include "checkpoints/reshard.h"
#include "core/status_macros.h"
#include "core/strings.h"
#include "tools/ckpt.h"
#include "tools/flags.h"

namespace lt2 {
namespace {

absl::Status Run(const std::string& from, const std::string& to, int ranks, VerbOutput& output) {
  ASSIGN_OR_RETURN(const Checkpoint checkpoint, OpenCheckpoint(from));
  ProgressLine progress("resharding");
  ASSIGN_OR_RETURN(const int64_t bytes, Reshard(checkpoint, to, ranks, ShowingProgress(progress)));
  progress.End();
  output.result = {{"from", checkpoint.directory()},
                   {"path", to},
                   {"step", checkpoint.info().step},
                   {"ranks", ranks},
                   {"bytes", bytes}};
  if (!output.json) {
    std::cout << StrCat("wrote ", to, ": step ", checkpoint.info().step, " of ",
                        checkpoint.directory(), " in ", ranks,
                        ranks == 1 ? " shard\n" : " shards\n");
  }
  return absl::OkStatus();
}

}  // namespace

CkptSubverb AddCkptReshard(CLI::App& ckpt) {
  CLI::App* app = AddSubverb(
      ckpt, "reshard",
      "Writes a checkpoint again as N even shards, checking it meanwhile. Runs need no such step:\n"
      "they load what any mesh saved; it is for moving, and for fewer or more files.",
      "{lt2} train lt2-tiny --max-steps 2 --run-dir runs/ckpt && {lt2} ckpt reshard runs/ckpt "
      "runs/one-file");
  auto from = std::make_shared<std::string>(), to = std::make_shared<std::string>();
  auto ranks = std::make_shared<int>(1);
  app->add_option("in", *from, kCheckpointArgument)->required();
  app->add_option("out", *to, "the checkpoint to make, a folder that does not exist")->required();
  app->add_option("--ranks", *ranks, "shards to make, 1: one file")->check(WholeNumber(1, 65536));
  return {app, [=](VerbOutput& output) { return Run(*from, *to, *ranks, output); }};
}

}  // namespace lt2
