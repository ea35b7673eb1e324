// lt2 train: pretrains a model.
#include <cmath>
#include <cstdio>

#include "core/log.h"
#include "core/status_macros.h"
#include "core/strings.h"
#include "launch/replay.h"
#include "launch/signals.h"
#include "launch/trainer.h"
#include "tools/device.h"
#include "tools/exit.h"
#include "tools/flags.h"
#include "tools/versions.h"

namespace lt2 {
namespace {

struct TrainFlags {
  ConfigFlags config;
  std::string device = "auto", run_dir;
  TrainOptions options;
  int64_t replay = 0;
};

absl::Status RunReplay(const RunConfig& config, const TrainOptions& options, int64_t step,
                       VerbOutput& output) {
  ASSIGN_OR_RETURN(const ReplayResult result, Replay(config, options, step, *output.world));
  const auto text = [](const ReplayResult::Numbers& numbers) {
    return StrCat("loss ", numbers.loss.dump(), ", norm ", numbers.grad_norm.dump());
  };
  output.result = {{"step", result.step}, {"from", result.from}, {"same", result.same()}};
  output.exit_code = result.same() ? 0 : 1;
  if (output.world->rank() > 0 || output.json) return absl::OkStatus();
  std::printf(
      "step %s, from the checkpoint of step %s\nrecorded: %s\nfirst:    %s\nsecond:   %s\n%s\n",
      StrCat(step).c_str(), StrCat(result.from).c_str(), text(result.recorded).c_str(),
      text(result.first).c_str(), text(result.second).c_str(), result.Verdict().c_str());
  return absl::OkStatus();
}

absl::Status RunTrain(const TrainFlags& flags, VerbOutput& output) {
  InstallSignalHandlers();
  ASSIGN_OR_RETURN(RunConfig config, flags.config.LoadOnAllRanks(output));
  ASSIGN_OR_RETURN(const Device device, ChooseDevice(flags.device, &output.world));
  if (!flags.run_dir.empty()) config.run.dir = flags.run_dir;
  TrainOptions o = flags.options;
  o.device = device;
  for (const auto& [name, version] : Versions()) o.software[name] = version;
  RETURN_IF_ERROR(SameOnAllRanks(StrCat(config.ToToml(), "\n", o.resume, "\n", o.init_from, "\n",
                                        o.max_steps, "\n", o.max_minutes, "\n", flags.replay),
                                 *output.world));
  if (flags.replay > 0) return RunReplay(config, o, flags.replay, output);
  ASSIGN_OR_RETURN(const TrainResult result, Train(config, o, *output.world));
  if (result.stopped) {
    output.exit_code = kExitStopped;
    if (o.resume != "auto" && output.world->rank() == 0) {
      LogWarn(StrCat("--resume ", o.resume,
                     " would begin there again and set this work aside: go on ",
                     "with --resume auto"));
    }
  }
  output.result = {{"step", result.step},
                   {"tokens", result.tokens},
                   {"loss", result.loss},
                   {"run_dir", result.run_dir},
                   {"checkpoint", result.checkpoint}};
  if (!std::isnan(result.valid_loss)) output.result["valid_loss"] = result.valid_loss;
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
        app.add_option("--run-dir", flags->run_dir, "where to write; run.dir where not given");
        app.add_option("--resume", o.resume,
                       "auto: the run directory's newest sound checkpoint; never; or a path");
        app.add_option("--init-from", o.init_from,
                       "start a new run from this checkpoint's weights alone");
        app.add_option("--max-steps", o.max_steps,
                       "end after this step of the run, save, exit 0; the schedule stays; 0: all")
            ->check(WholeNumber(0));
        app.add_option("--max-minutes", o.max_minutes, "save and exit 75 after so long; 0: never")
            ->check(NumberFrom(0));
        app.add_option("--replay", flags->replay,
                       "run this recorded step again, twice, from the checkpoint before it, and "
                       "compare bits; the run directory is only read; 0: no")
            ->check(WholeNumber(0));
        AddDeviceFlag(app, &flags->device);
        return [flags](VerbOutput& output) { return RunTrain(*flags, output); };
      },
      .parallel = true};
}

}  // namespace lt2
