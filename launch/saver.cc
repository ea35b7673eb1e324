#include "launch/saver.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "absl/strings/str_format.h"
#include "checkpoints/agreement.h"
#include "core/log.h"
#include "core/status_macros.h"
#include "core/strings.h"
#include "core/trace.h"
#include "launch/environment.h"
#include "parallel/host_group.h"

namespace lt2 {
namespace {

WriterOptions OptionsFor(const RunConfig& config, Communicator& world, const RunDir* run_dir) {
  WriterOptions options{
      .async = config.checkpoint.async,
      .verify_writes = config.checkpoint.verify_writes,
      .retention = {.keep_last = config.checkpoint.keep_last,
                    .keep_every = config.checkpoint.keep_every.Steps(config.batch.tokens)},
      .sharing = config.checkpoint.per_node ? MakeHostGroup(world) : nullptr};
  if (run_dir != nullptr) {
    options.may_publish = [lock = &run_dir->lock()] { return lock->StillHeld(); };
  }
  return options;
}

}  // namespace

Saver::Saver(const RunConfig& config, const Mesh& mesh, const Loader& loader, Communicator& world,
             const std::string& folder, const RunDir* run_dir, Hooks hooks)
    : config_(config),
      mesh_(mesh),
      loader_(loader),
      world_(world),
      hooks_(std::move(hooks)),
      writer_(folder, world, OptionsFor(config, world, run_dir)),
      saved_at_(MonotonicSeconds()) {}

absl::Status Saver::Reserve(TrainStep& step) {
  const absl::StatusOr<int64_t> bytes = writer_.ReserveStaging(PiecesOf(step, /*owned=*/true));
  RETURN_IF_ERROR(Agree(world_, bytes.status()));
  if (*bytes > 0) {
    LogInfo(absl::StrFormat("checkpoints are written from a copy: %.1f MiB of host memory a rank",
                            static_cast<double>(*bytes) / (1 << 20)));
  }
  return absl::OkStatus();
}

bool Saver::Due(int64_t step) const {
  const Quantity& every = config_.checkpoint.every;
  if (every.value <= 0) return false;
  return every.unit == Quantity::Unit::kSeconds ? MonotonicSeconds() - saved_at_ >= every.value
                                                : step % every.Steps(config_.batch.tokens) == 0;
}

absl::Status Saver::Save(TrainStep& step, const RunState& state) {
  RETURN_IF_ERROR(Finish());
  hooks_.progress("checkpoint");
  step.optimizer().WaitForValues();
  CheckpointInfo info = CheckpointInfoOf(config_, mesh_, loader_, state);
  info.extra = ToJson(step.optimizer().counters());
  RETURN_IF_ERROR(writer_.Begin(std::move(info), PiecesOf(step, /*owned=*/true)));
  saved_step_ = state.step;
  saved_at_ = MonotonicSeconds();
  return config_.checkpoint.async ? absl::OkStatus() : Finish();
}

absl::Status Saver::GoOn() {
  if (!writer_.in_flight()) return absl::OkStatus();
  hooks_.progress("publishing a checkpoint");
  ASSIGN_OR_RETURN(const std::optional<SavedCheckpoint> saved, writer_.Advance());
  if (!saved) return absl::OkStatus();
  newest_ = saved->path;
  seconds_ = std::max(seconds_, saved->writing_seconds);
  LogInfo(StrCat("saved ", saved->path));
  hooks_.say("checkpoint", {{"step", saved->step},
                            {"path", saved->path},
                            {"bytes", saved->bytes},
                            {"stalled_s", saved->stalled_seconds},
                            {"writing_s", saved->writing_seconds}});
  return absl::OkStatus();
}

absl::Status Saver::Finish() {
  while (writer_.in_flight()) {
    while (Busy()) {
      hooks_.progress("writing a checkpoint");
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    RETURN_IF_ERROR(GoOn());
  }
  return absl::OkStatus();
}

void Saver::Found(const std::string& path, int64_t step) {
  newest_ = path;
  saved_step_ = step;
}

}  // namespace lt2
