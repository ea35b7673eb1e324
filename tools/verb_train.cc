// lt2 train: pretrains a model.
#include <cmath>

#include "core/log.h"
#include "core/status_macros.h"
#include "launch/signals.h"
#include "launch/threads.h"
#include "launch/trainer.h"
#include "parallel/mpi_communicator.h"
#include "tools/device.h"
#include "tools/exit.h"
#include "tools/flags.h"
#include "tools/verb.h"

namespace lt2 {
namespace {

struct TrainFlags {
  ConfigFlags config;
  std::string device = "auto";
  TrainOptions options;
};

absl::Status RunTrain(const TrainFlags& flags, VerbOutput& output) {
  RETURN_IF_ERROR(ChooseDevice(flags.device).status());
  ASSIGN_OR_RETURN(const RunConfig config, flags.config.Load());
  InstallSignalHandlers();
  ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> world, StartWorld());
  SetLogRank(world->rank(), world->size(), world->host());
  UseThreadsFor(*world);
  const absl::StatusOr<TrainResult> result = Train(config, flags.options, *world);
  if (!result.ok()) {
    // Every rank has the same error: rank 0 tells it, before any rank leaves and ends the job.
    const std::string message(result.status().message());
    if (world->rank() == 0) LogError(message);
    output.result["error"] = message;
    output.exit_code = StatusToExitCode(result.status());
    return absl::OkStatus();
  }
  if (result->stopped) output.exit_code = kExitStopped;
  output.result = {{"step", result->step},
                   {"tokens", result->tokens},
                   {"loss", result->loss},
                   {"run_dir", result->run_dir},
                   {"checkpoint", result->checkpoint}};
  if (!std::isnan(result->valid_loss)) output.result["valid_loss"] = result->valid_loss;
  return absl::OkStatus();
}

}  // namespace

Verb TrainVerb() {
  return {
      .name = "train",
      .summary =
          "Pretrains a model. TERM, INT, USR1 or USR2 at any rank: finish the step, save, "
          "exit 75 (under mpirun send USR1 to mpirun: TERM or INT to mpirun itself kills "
          "its ranks after a second).",
      .example = "{lt2} train lt2-tiny --max-steps 20 --run-dir runs/first",
      .add = [](CLI::App& app) -> VerbBody {
        auto flags = std::make_shared<TrainFlags>();
        AddConfigFlags(app, &flags->config);
        TrainOptions& o = flags->options;
        app.add_option("--run-dir", o.run_dir, "where to write; run.dir where not given");
        app.add_option("--resume", o.resume,
                       "auto: the run directory's newest sound checkpoint; never; or a path");
        app.add_option("--init-from", o.init_from,
                       "start a new run from this checkpoint's weights alone");
        app.add_option("--max-steps", o.max_steps,
                       "end after this step of the run, save, exit 0; the schedule stays; 0: all");
        app.add_option("--max-minutes", o.max_minutes, "save and exit 75 after so long; 0: never");
        AddDeviceFlag(app, &flags->device);
        return [flags](VerbOutput& output) { return RunTrain(*flags, output); };
      }};
}

}  // namespace lt2
