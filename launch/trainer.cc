#include "launch/trainer.h"

#include <cmath>

#include "absl/strings/str_format.h"
#include "checkpoints/agreement.h"
#include "core/allocator.h"
#include "core/log.h"
#include "core/status_macros.h"
#include "core/strings.h"
#include "core/trace.h"
#include "data/prefetch.h"
#include "launch/device_peak.h"
#include "launch/environment.h"
#include "launch/memory_advice.h"
#include "launch/progress.h"
#include "launch/resume.h"
#include "launch/run_dir.h"
#include "launch/sample_schedule.h"
#include "launch/saver.h"
#include "launch/schedule.h"
#include "launch/signals.h"
#include "launch/train_step.h"
#include "launch/validation.h"
#include "launch/watchdog.h"
#include "launch/wishes.h"
#include "parallel/replica_check.h"

namespace lt2 {
namespace {

class Trainer {
 public:
  Trainer(const RunConfig& config, const TrainOptions& options, Communicator& world)
      : config_(config),
        options_(options),
        world_(world),
        wishes_(world.rank(), options.max_minutes) {}

  absl::StatusOr<TrainResult> Run();

 private:
  absl::Status Prepare();
  absl::Status OpenRunDir();
  absl::Status Start();
  absl::Status Steps();
  StepReport OneStep(Batch& batch, bool diagnose, StepMetrics& metrics);
  absl::Status AfterStep(const StepReport& report, StepMetrics& metrics);
  void ReportStep(const StepReport& report, const StepMetrics& metrics);
  absl::Status CompareReplicas();
  absl::Status Validate();
  bool Validated();  // metrics.jsonl has the step's validation loss
  void Event(std::string_view event, const JsonLine& fields);
  // Ends all ranks for an error that only this one sees.
  void MustHold(const absl::Status& status);

  int64_t last_step() const;

  const RunConfig config_;
  const TrainOptions options_;
  Communicator& world_;
  Wishes wishes_;

  Mesh mesh_;
  RankGroups groups_;
  std::unique_ptr<Loader> loader_;
  MemoryPlan plan_;
  std::unique_ptr<TrainStep> step_;
  std::unique_ptr<RunDir> run_dir_;  // rank 0
  RunPaths paths_;
  std::unique_ptr<Saver> saver_;
  std::unique_ptr<Watchdog> watchdog_;
  std::unique_ptr<Schedule> schedule_;

  RunState state_;
  std::unique_ptr<Prefetcher> prefetcher_;
  LoopDiagnostics diagnostics_;
  StepClock clock_;
  TrainResult result_{.loss = std::nan(""), .grad_norm = std::nan(""), .valid_loss = std::nan("")};
};

int64_t SamplesPerStep(const RunConfig& config) {
  return config.batch.tokens / config.data.sequence;
}

int64_t Trainer::last_step() const {
  const int64_t left = schedule_->total_tokens() - state_.tokens;
  const int64_t end =
      state_.step + std::max<int64_t>(0, (left + config_.batch.tokens - 1) / config_.batch.tokens);
  return options_.max_steps > 0 ? std::min(end, options_.max_steps) : end;
}

void Trainer::MustHold(const absl::Status& status) {
  if (status.ok()) return;
  LogError(StrCat(std::string(status.message()),
                  saver_ && !saver_->newest().empty()
                      ? "; the last good checkpoint is " + saver_->newest()
                      : ""));
  world_.Abort(absl::IsDataLoss(status) ? 3 : 1);
}

void Trainer::Event(std::string_view event, const JsonLine& fields) {
  if (run_dir_ != nullptr) MustHold(run_dir_->metrics().Event(event, fields));
}

absl::StatusOr<TrainResult> Trainer::Run() {
  RETURN_IF_ERROR(Prepare());
  RETURN_IF_ERROR(OpenRunDir());
  const absl::Status status = Start();
  if (!status.ok()) {
    // As far as it goes: what ended the run may keep this from being written too.
    if (run_dir_ != nullptr) {
      (void)run_dir_->metrics().Event(
          "end", {{"reason", "error"}, {"error", std::string(status.message())}});
    }
    return status;
  }
  result_.checkpoint = saver_->newest();
  Event("end", {{"reason", result_.stopped ? "stopped" : "done"}, {"step", state_.step}});
  result_.step = state_.step;
  result_.tokens = state_.tokens;
  result_.run_dir = paths_.root;
  return result_;
}

// Everything that needs no memory: mesh, data, plan.
absl::Status Trainer::Prepare() {
  ASSIGN_OR_RETURN(mesh_, MeshFor(config_, world_.size()));
  groups_ = MakeGroups(world_, mesh_);
  absl::StatusOr<std::unique_ptr<Loader>> loader =
      Loader::Open(config_.data, config_.run.seed, config_.model.vocab);
  RETURN_IF_ERROR(Agree(world_, loader.status()));
  loader_ = *std::move(loader);
  schedule_ =
      std::make_unique<Schedule>(config_.schedule, config_.optimizer.lr, config_.batch.tokens);
  ASSIGN_OR_RETURN(const StepOptions step_options,
                   StepOptionsFor(config_, mesh_, options_.device,
                                  loader_->max_documents(config_.batch.micro_batch), world_));
  plan_ = PlanMemory(step_options, mesh_, world_.rank());
  LogInfo(plan_.ToString());
  LogDebug(StrCat("data ", loader_->fingerprint(), ", ", loader_->valid_windows(),
                  " validation windows"));
  RETURN_IF_ERROR(
      Agree(world_, CheckFits(plan_, MemoryBudget(options_.device, world_.local_size()))));
  step_ = std::make_unique<TrainStep>(step_options, mesh_, groups_);
  GiveMemoryAdvice(step_options, mesh_, world_.rank());
  step_->ReserveWorkspace(plan_.peak_bytes - plan_.persistent_bytes);
  step_->InitializeParameters(config_.run.seed);
  return absl::OkStatus();
}

absl::Status Trainer::OpenRunDir() {
  paths_.root = options_.run_dir.empty() ? config_.run.dir : options_.run_dir;
  absl::Status status;
  if (world_.rank() == 0 && options_.replay == 0) {
    auto opened = RunDir::Open(paths_.root);
    status = opened.status();
    if (opened.ok()) {
      run_dir_ = *std::move(opened);
      wishes_.Heed(paths_);
    }
  }
  RETURN_IF_ERROR(Agree(world_, status));
  if (options_.replay == 0) LogToRunDir(paths_, world_.rank());
  saver_ = std::make_unique<Saver>(
      config_, mesh_, *loader_, world_, paths_.checkpoints(), run_dir_.get(),
      Saver::Hooks{
          .progress = [this](const char* phase) { watchdog_->Progress(phase); },
          .say = [this](std::string_view event, const JsonLine& fields) { Event(event, fields); }});
  return options_.replay > 0 ? absl::OkStatus() : saver_->Reserve(*step_);
}

absl::Status Trainer::Start() {
  const double begun = MonotonicSeconds();
  ASSIGN_OR_RETURN(
      const StartingPoint start,
      LoadStart(paths_.checkpoints(), {options_.resume, options_.init_from, options_.replay},
                config_, *loader_, *step_, world_));
  const double loading_s = MonotonicSeconds() - begun;
  JsonLine environment = Environment(config_, mesh_, options_.device, world_);
  environment["software"] = options_.software;
  if (run_dir_ != nullptr) MustHold(run_dir_->Describe(config_.ToToml(), environment));
  state_ = start.state;
  result_.from = state_.step;
  if (start.checkpoint.empty() || state_.step == 0) {
    Event("start", {{"ranks", world_.size()}, {"init_from", start.checkpoint}});
  } else {
    LogInfo(StrCat("resuming after step ", state_.step, " from ", start.checkpoint, " (written by ",
                   start.mesh, "); next learning rate ",
                   schedule_->LearningRate(state_.tokens + config_.batch.tokens)));
    LogInfo(absl::StrFormat("read %.1f MiB of it in %.1f s",
                            static_cast<double>(start.bytes_read) / (1 << 20), loading_s));
    for (const std::string& key : start.differences) {
      if (world_.rank() == 0) LogWarn(StrCat("differs from the checkpoint: ", key));
    }
    Event("resume", {{"step", state_.step},
                     {"checkpoint", start.checkpoint},
                     {"mesh_then", start.mesh},
                     {"mesh", mesh_.ToString()},
                     {"bytes_read", start.bytes_read},
                     {"loading_s", loading_s},
                     {"differences", start.differences}});
    saver_->Found(start.checkpoint, state_.step);
    if (run_dir_ != nullptr) saver_->DeleteOld();
  }
  if (!wishes_.End().empty()) LogInfo(StrCat("must end ", wishes_.End()));
  const bool nothing_left = state_.step >= last_step();
  if (nothing_left) LogInfo(StrCat("nothing left to do: step ", state_.step, " of ", last_step()));
  watchdog_ =
      std::make_unique<Watchdog>(world_, config_.run.first_step_limit, config_.run.stall_limit,
                                 options_.replay > 0 ? "" : paths_.logs());
  RETURN_IF_ERROR(Steps());
  if (options_.replay > 0) return absl::OkStatus();
  // What ended the run after its last step has kept it from this.
  if (nothing_left && state_.step > 0 && !Validated()) RETURN_IF_ERROR(Validate());
  watchdog_->Progress("last checkpoint");
  if (saver_->saved_step() != state_.step) RETURN_IF_ERROR(saver_->Save(*step_, state_));
  return saver_->Finish();
}

absl::Status Trainer::Steps() {
  const StepOptions& shape = step_->options();
  const int64_t last = last_step();
  const SampleSchedule schedule{.first_sample = state_.samples,
                                .samples_per_step = SamplesPerStep(config_),
                                .micro_batches = shape.micro_batches,
                                .micro_batch = shape.micro_batch,
                                .dp = mesh_.dp,
                                .rank = groups_.dp};
  const int64_t jobs = std::max<int64_t>(0, last - state_.step) * shape.micro_batches;
  prefetcher_ = std::make_unique<Prefetcher>(loader_.get(), schedule, 0, jobs);
  Batch batch;
  const int64_t log_every = std::max<int64_t>(1, config_.log.every.Steps(config_.batch.tokens));
  while (state_.step < last && !result_.stopped) {
    StepMetrics metrics;
    const bool log = (state_.step + 1) % log_every == 0 || state_.step + 1 == last;
    const bool diagnose = log && step_->options().row_tiles == 1;
    const StepReport report = OneStep(batch, diagnose, metrics);
    ReportStep(report, metrics);
    if (log) LogInfo(ConsoleLine(metrics, last, clock_.average() * (last - state_.step)));
    if (options_.replay == 0) RETURN_IF_ERROR(AfterStep(report, metrics));
    watchdog_->StepDone();
  }
  return absl::OkStatus();
}

StepReport Trainer::OneStep(Batch& batch, bool diagnose, StepMetrics& metrics) {
  const double begun = MonotonicSeconds(), waited = prefetcher_->wait_seconds();
  double diagnosed = 0;
  step_->Begin(diagnose);
  for (int64_t m = 0; m < step_->options().micro_batches; ++m) {
    watchdog_->Progress("data");
    MustHold(prefetcher_->Next(&batch));
    watchdog_->Progress("forward and backward");
    const bool look = diagnose && m == 0;
    step_->MicroBatch(batch, look ? &diagnostics_ : nullptr);
    if (look) diagnosed = static_cast<double>(batch.counted);
  }
  watchdog_->Progress("reduction and update");
  const int64_t tokens = config_.batch.tokens;
  metrics.lr = schedule_->LearningRate(state_.tokens + tokens);
  StepInput input{.step = state_.step + 1,
                  .lr = metrics.lr,
                  .maxes = wishes_.AtEndOf(state_.step + 1, clock_.average(), *saver_)};
  saver_->AwaitCopy();
  const StepReport report = step_->Finish(std::move(input));

  ++state_.step;
  state_.tokens += tokens;
  state_.samples += SamplesPerStep(config_);
  int64_t windows = 0;
  for (int s = 0; s < loader_->sources(); ++s) windows += loader_->windows(s);
  metrics.step = state_.step;
  metrics.tokens = state_.tokens;
  metrics.epoch = static_cast<double>(state_.samples) / static_cast<double>(windows);
  metrics.loss = report.sums[0] / report.counted_tokens;
  if (!std::isfinite(metrics.loss)) metrics.loss = std::nan("");
  metrics.grad_norm = report.grad_norm;
  metrics.step_s = MonotonicSeconds() - begun;
  metrics.data_wait_s = prefetcher_->wait_seconds() - waited;
  metrics.SetSpeed(tokens, world_.size(), plan_.model_flops_per_token);
  metrics.mfu = Mfu(options_.device, step_->options().dtype, 1e12 * metrics.model_tflops_per_gpu);
  metrics.peak_bytes = CachingAllocator::Of(options_.device).stats().peak;
  if (diagnose) metrics.more = ToJson(diagnostics_, diagnosed);
  // Of the objective's units: a sum over layers and loops, per counted token.
  if (step_->has_auxiliary_losses()) {
    metrics.more["auxiliary_loss"] = report.sums[1] / report.counted_tokens;
  }
  if (config_.model.exit_gate) {
    metrics.more.update(ExitsToJson(std::span(report.sums).subspan(2), report.counted_tokens));
  }
  clock_.Add(metrics.step_s);
  result_.loss = metrics.loss;
  result_.grad_norm = metrics.grad_norm;
  return report;
}

void Trainer::ReportStep(const StepReport& report, const StepMetrics& metrics) {
  if (run_dir_ != nullptr) MustHold(run_dir_->metrics().Step(metrics));
  if (*report.skipped == '\0') return;
  const int64_t end = state_.samples, begin = end - SamplesPerStep(config_);
  LogWarn(StrCat("step ", state_.step, " skipped: ", report.skipped, " (samples ", begin, " to ",
                 end - 1, ")"));
  Event("skip", {{"step", state_.step},
                 {"reason", report.skipped},
                 {"first_sample", begin},
                 {"last_sample", end - 1},
                 {"skipped", step_->optimizer().counters().skipped}});
}

absl::Status Trainer::AfterStep(const StepReport& report, StepMetrics& metrics) {
  const std::vector<double>& wishes = report.maxes;
  if (wishes[kStillWriting] == 0) RETURN_IF_ERROR(saver_->GoOn());
  if (step_->optimizer().TooManySkips()) {
    RETURN_IF_ERROR(saver_->Finish());
    return absl::InternalError(
        StrCat(config_.optimizer.skip_limit, " updates in a row were skipped (", report.skipped,
               "), the last at step ", metrics.step,
               "; lower optimizer.lr, or look at the samples named in events.jsonl"));
  }
  const int64_t check_every = config_.run.replica_check.Steps(config_.batch.tokens);
  if (check_every > 0 && state_.step % check_every == 0) RETURN_IF_ERROR(CompareReplicas());
  const int64_t valid_every = config_.log.valid_every.Steps(config_.batch.tokens);
  const bool last = state_.step == last_step();
  const bool stop = wishes[kStopSignal] != 0 || wishes[kStopFile] != 0;
  if (last) {  // before a validation that may be long
    RETURN_IF_ERROR(saver_->Save(*step_, state_));
    RETURN_IF_ERROR(saver_->Finish());
  }
  const bool validate = last || (valid_every > 0 && state_.step % valid_every == 0);
  if (validate && !stop) RETURN_IF_ERROR(Validate());
  if (const int signal = static_cast<int>(wishes[kStopSignal]); signal != 0) {
    LogInfo(StrCat(SignalName(signal), " received: saving after step ", state_.step));
    Event("signal", {{"signal", SignalName(signal)}, {"step", state_.step}});
  }
  // After the last step its validation alone may be missing.
  if (stop) result_.stopped = !last || loader_->valid_windows() > 0;
  // While updates are skipped something is wrong: older checkpoints are worth more than this state.
  const bool healthy = step_->optimizer().counters().skipped_in_row == 0;
  if (!last && (result_.stopped || (wishes[kSave] != 0 && healthy))) {
    RETURN_IF_ERROR(saver_->Save(*step_, state_));
  }
  return absl::OkStatus();
}

absl::Status Trainer::CompareReplicas() {
  if (world_.size() == 1) return absl::OkStatus();
  watchdog_->Progress("comparing replicas");
  step_->optimizer().WaitForValues();
  const std::vector<Param*> params = step_->model().params().all();
  const absl::Status same =
      Agree(world_, CheckReplicas(step_->stream(), params, step_->layout(), groups_));
  if (same.ok()) return same;
  RETURN_IF_ERROR(saver_->Finish());
  return absl::InternalError(
      StrCat(std::string(same.message()), " after step ", state_.step,
             ": memory or arithmetic of a machine has failed since the last comparison, ",
             "run.replica_check = ", config_.run.replica_check.ToString(),
             " before. Leave that host out and resume from a checkpoint that is older"));
}

bool Trainer::Validated() {
  std::string found;
  if (run_dir_ != nullptr) {
    const absl::StatusOr<MetricsHistory> history = ReadMetrics(paths_.root);
    if (history.ok() && history->valid.contains(state_.step)) found = "found";
  }
  return !world_.BroadcastString(found).empty();
}

absl::Status Trainer::Validate() {
  if (loader_->valid_windows() == 0) return absl::OkStatus();
  const int64_t sequence = config_.data.sequence;
  const int64_t limit = (config_.log.valid_tokens + sequence - 1) / sequence;
  const auto go_on = [this] {
    watchdog_->Progress("validation");
    return !wishes_.Hurried(clock_.average(), *saver_);
  };
  const absl::StatusOr<std::optional<double>> loss =
      ValidationLoss(*loader_, limit, *step_, mesh_, groups_, go_on);
  MustHold(loss.status());
  if (!loss->has_value()) {
    LogWarn(StrCat("step ", state_.step, " is not validated: the run is to stop"));
    result_.stopped = state_.step == last_step();
    return absl::OkStatus();
  }
  result_.valid_loss = **loss;
  LogInfo(absl::StrFormat("step %d  validation loss %.4f", state_.step, **loss));
  if (run_dir_ != nullptr) MustHold(run_dir_->metrics().Valid(state_.step, **loss));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TrainResult> Train(const RunConfig& config, const TrainOptions& options,
                                  Communicator& world) {
  return Trainer(config, options, world).Run();
}

}  // namespace lt2
