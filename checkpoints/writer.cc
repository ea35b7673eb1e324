#include "checkpoints/writer.h"

#include <atomic>
#include <utility>

#include "checkpoints/agreement.h"
#include "checkpoints/assemble.h"
#include "core/file.h"
#include "core/log.h"
#include "core/status_macros.h"
#include "core/strings.h"
#include "core/trace.h"

namespace lt2 {
namespace {

// The error that all ranks report. A failed save is a failure while running, whatever it was that
// failed in it, so codes that speak of the user's input or of damaged data are not passed on.
absl::Status SaveError(const absl::Status& reason, int64_t step, const std::string& root) {
  const std::string last_good = NewestThatOpens(root);
  const absl::StatusCode code = reason.code();
  const bool passed_on =
      code == absl::StatusCode::kResourceExhausted || code == absl::StatusCode::kAborted;
  return absl::Status(
      passed_on ? code : absl::StatusCode::kInternal,
      StrCat("could not save step ", step, ": ", std::string(reason.message()),
             last_good.empty() ? "; there is no earlier checkpoint"
                               : StrCat("; the last good checkpoint is ", last_good)));
}

}  // namespace

// The one save in flight, as this rank sees it.
struct Writer::Job {
  CheckpointInfo info;
  std::string temporary;
  std::vector<TensorPiece> pieces;
  std::vector<const std::byte*> data;
  // What this rank has written, as text: making it, and reading it, is the threads' work.
  absl::StatusOr<std::string> result = absl::UnknownError("not written yet");
  bool gathered = false;                         // every rank has written
  absl::StatusOr<std::string> published = "";    // bytes; of rank 0
  std::atomic<bool> copied{false}, done{false};  // done: the thread, with what it has to do now
  std::thread thread;
  double begun = 0, stalled = 0;
};

Writer::Writer(std::string root, Communicator& world, WriterOptions options)
    : root_(std::move(root)), world_(world), options_(std::move(options)) {}

Writer::~Writer() {
  if (job_ && job_->thread.joinable()) job_->thread.join();
}

bool Writer::NeedsCopy(std::span<const TensorPiece> pieces) const {
  return options_.async || OnGpu(pieces);
}

absl::StatusOr<int64_t> Writer::ReserveStaging(std::span<const TensorPiece> pieces) {
  if (NeedsCopy(pieces)) RETURN_IF_ERROR(staging_.Reserve(pieces));
  return staging_.bytes();
}

absl::StatusOr<std::string> Writer::MakeTemporary(const CheckpointInfo& info) const {
  const std::string temporary = JoinPath(root_, StrCat(StepName(info.step), ".tmp-", info.id));
  RETURN_IF_ERROR(FileSystem::Get().MakeDirectories(temporary));
  return temporary;
}

absl::Status Writer::Begin(CheckpointInfo info, std::span<const TensorPiece> pieces) {
  CHECK(!in_flight()) << "the save of step " << job_->info.step << " was not published";
  const double begun = MonotonicSeconds();
  info.id =
      world_.BroadcastString(world_.rank() == 0 ? MakeCheckpointId(world_.host(), info.step) : "");
  absl::StatusOr<std::string> temporary = "";
  if (world_.rank() == 0) {
    temporary = MakeTemporary(info);
    if (!temporary.ok()) temporary = SaveError(temporary.status(), info.step, root_);
  }
  temporary = BroadcastResult(world_, temporary);
  RETURN_IF_ERROR(temporary.status());

  job_ = std::make_unique<Job>();
  job_->begun = begun;
  job_->info = std::move(info);
  job_->temporary = *std::move(temporary);
  job_->pieces.assign(pieces.begin(), pieces.end());
  if (absl::Status prepared = Prepare(*job_); !prepared.ok()) {
    job_->result = prepared;  // told to the other ranks when all publish
    job_->copied = job_->done = true;
  } else if (options_.async) {
    job_->thread = std::thread([this, job = job_.get()] { Write(*job); });
  } else {
    Write(*job_);
  }
  job_->stalled = MonotonicSeconds() - begun;
  return absl::OkStatus();
}

absl::Status Writer::Prepare(Job& job) {
  if (options_.sharing && placed_.file.name.empty()) {
    absl::StatusOr<ShardContent> placed = PlaceShared(job);
    RETURN_IF_ERROR(placed.status());
    placed_ = *std::move(placed);
  }
  RETURN_IF_ERROR(ReserveStaging(job.pieces).status());
  staging_.Mark(job.pieces);
  return absl::OkStatus();
}

void Writer::AwaitCopy() {
  if (!job_ || job_->copied) return;
  const double begun = MonotonicSeconds();
  job_->copied.wait(false);
  job_->stalled += MonotonicSeconds() - begun;
}

// The group's first rank finds a place for everyone's boxes.
absl::StatusOr<ShardContent> Writer::PlaceShared(const Job& job) const {
  Communicator& group = *options_.sharing;
  const std::vector<std::string> plans = group.GatherStrings(ToJson(PlanShard(job.pieces)));
  const auto place = [&]() -> absl::StatusOr<std::string> {
    ShardContent all;
    for (const std::string& plan : plans) {
      ASSIGN_OR_RETURN(const ShardContent one, ParseShardContent(plan));
      AddTo(all, one);
    }
    RETURN_IF_ERROR(PlaceBoxes(job.temporary, world_.rank(), all));
    return ToJson(all);
  };
  const absl::StatusOr<std::string> placed =
      BroadcastResult(group, group.rank() == 0 ? place() : "");
  RETURN_IF_ERROR(placed.status());
  return ParseShardContent(*placed);
}

absl::StatusOr<ShardContent> Writer::WriteShared(const Job& job) const {
  StoredFile file{.name = placed_.file.name, .bytes = placed_.file.bytes, .frame = ""};
  if (options_.sharing->rank() == 0) {
    ASSIGN_OR_RETURN(file, WriteFrame(job.temporary, world_.rank(), job.info, placed_));
  }
  ASSIGN_OR_RETURN(ShardContent mine,
                   WriteBoxes(job.temporary, job.info, placed_, job.pieces, job.data));
  mine.file = std::move(file);
  return mine;
}

absl::StatusOr<std::string> Writer::WriteAndDescribe(const Job& job) const {
  ASSIGN_OR_RETURN(const ShardContent shard,
                   options_.sharing
                       ? WriteShared(job)
                       : WriteShard(job.temporary, world_.rank(), job.info, job.pieces, job.data));
  if (options_.verify_writes) RETURN_IF_ERROR(VerifyShard(job.temporary, shard));
  return ToJson(shard);
}

// In a thread of its own with `async`.
void Writer::Write(Job& job) {
  TraceRange range("checkpoint_write");
  if (NeedsCopy(job.pieces)) {
    job.data = staging_.Copy(job.pieces);
  } else {
    for (const TensorPiece& piece : job.pieces) {
      job.data.push_back(static_cast<const std::byte*>(piece.tensor.raw()));
    }
  }
  job.copied = true;
  job.copied.notify_all();
  job.result = WriteAndDescribe(job);
  job.done.store(true, std::memory_order_release);
}

bool Writer::LocalDone() const { return !job_ || job_->done.load(std::memory_order_acquire); }

absl::StatusOr<std::optional<SavedCheckpoint>> Writer::Advance() {
  CHECK(in_flight()) << "no save to go on with";
  TraceRange range("checkpoint_publish");
  const double begun = MonotonicSeconds();
  Job& job = *job_;
  if (job.thread.joinable()) job.thread.join();
  if (!std::exchange(job.gathered, true)) {
    std::vector<absl::StatusOr<std::string>> results = GatherResults(world_, job.result);
    if (world_.rank() == 0) {
      job.done = false;
      job.thread = std::thread([this, &job, results = std::move(results)] {
        job.published = PublishAsRoot(results);
        job.done.store(true, std::memory_order_release);
      });
    }
    job.stalled += MonotonicSeconds() - begun;
    return std::nullopt;
  }
  const absl::StatusOr<std::string> bytes = BroadcastResult(world_, job.published);
  const std::unique_ptr<Job> ended = std::move(job_);
  RETURN_IF_ERROR(bytes.status());
  const double now = MonotonicSeconds();
  return SavedCheckpoint{.path = JoinPath(root_, StepName(ended->info.step)),
                         .step = ended->info.step,
                         .bytes = std::stoll(*bytes),
                         .stalled_seconds = ended->stalled + now - begun,
                         .writing_seconds = now - ended->begun};
}

absl::StatusOr<SavedCheckpoint> Writer::Publish() {
  std::optional<SavedCheckpoint> saved;
  while (!saved) {
    ASSIGN_OR_RETURN(saved, Advance());
  }
  return *std::move(saved);
}

absl::StatusOr<std::string> Writer::PublishAsRoot(
    const std::vector<absl::StatusOr<std::string>>& results) const {
  const auto publish = [&]() -> absl::StatusOr<std::string> {
    std::vector<ShardContent> shards;
    for (const absl::StatusOr<std::string>& result : results) {  // of the first rank that failed
      RETURN_IF_ERROR(result.status());
      ASSIGN_OR_RETURN(shards.emplace_back(), ParseShardContent(*result));
    }
    ASSIGN_OR_RETURN(const int64_t bytes, Assemble(job_->temporary, job_->info, shards));
    RETURN_IF_ERROR(options_.may_publish());
    RETURN_IF_ERROR(Rename());
    return StrCat(bytes);
  };
  const absl::StatusOr<std::string> bytes = publish();
  if (!bytes.ok()) {
    // What cannot be removed now the next start removes.
    FileSystem::Get().RemoveAll(job_->temporary).IgnoreError();
    return SaveError(bytes.status(), job_->info.step, root_);
  }
  const std::string published = JoinPath(root_, StepName(job_->info.step));
  DeleteOld(published);
  return bytes;
}

void Writer::DeleteOld(std::string_view in_use) const {
  const absl::Status status = ApplyRetention(root_, options_.retention, in_use);
  if (!status.ok()) {
    LogWarn(StrCat("old checkpoints could not be deleted: ", std::string(status.message())));
  }
}

absl::Status Writer::Rename() const {
  FileSystem& files = FileSystem::Get();
  const std::string name = JoinPath(root_, StepName(job_->info.step));
  const std::string old = StrCat(name, ".old-", job_->info.id);
  const bool replaces = files.Exists(name);
  if (replaces) RETURN_IF_ERROR(files.Rename(name, old));
  if (absl::Status status = files.Rename(job_->temporary, name); !status.ok()) {
    if (replaces) status.Update(files.Rename(old, name));
    return status;
  }
  const absl::Status synced = files.Sync(root_);
  if (replaces) files.RemoveAll(old).IgnoreError();  // else the next start removes it
  return synced;
}

}  // namespace lt2
