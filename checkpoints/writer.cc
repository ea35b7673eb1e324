#include "checkpoints/writer.h"

#include <atomic>
#include <cstring>
#include <new>

#include "checkpoints/agreement.h"
#include "checkpoints/assemble.h"
#include "core/cuda.h"
#include "core/file.h"
#include "core/log.h"
#include "core/status_macros.h"
#include "core/strings.h"
#include "core/trace.h"

namespace lt2 {
namespace {

int64_t TotalBytes(std::span<const TensorPiece> pieces) {
  int64_t bytes = 0;
  for (const TensorPiece& piece : pieces) bytes += piece.tensor.bytes();
  return bytes;
}

// The error that all ranks report. A failed save is a failure while running, whatever it was that
// failed in it, so codes that speak of the user's input or of damaged data are not passed on.
absl::Status SaveError(const absl::Status& reason, int64_t step, const std::string& root) {
  const std::string last_good = NewestThatOpens(root);
  const absl::StatusCode code = reason.code();
  const bool passed_on = code == absl::StatusCode::kResourceExhausted ||
                         code == absl::StatusCode::kAborted ||
                         code == absl::StatusCode::kPermissionDenied;
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
  absl::StatusOr<ShardContent> result = absl::UnknownError("not written yet");
  std::atomic<bool> done{false};
  std::thread thread;
  double begun = 0, stalled = 0;
};

Writer::Writer(std::string root, Communicator& world, WriterOptions options)
    : root_(std::move(root)), world_(world), options_(std::move(options)) {}

Writer::~Writer() {
  if (job_ && job_->thread.joinable()) job_->thread.join();
}

bool Writer::NeedsCopy(std::span<const TensorPiece> pieces) const {
  return options_.async || std::any_of(pieces.begin(), pieces.end(), [](const TensorPiece& piece) {
           return piece.tensor.on_gpu();
         });
}

absl::Status Writer::ReserveStaging(std::span<const TensorPiece> pieces) {
  const int64_t bytes = TotalBytes(pieces);
  if (!NeedsCopy(pieces) || bytes <= staging_capacity_) return absl::OkStatus();
  staging_.reset();
  staging_capacity_ = 0;
  staging_.reset(new (std::nothrow) std::byte[bytes]);
  if (!staging_) {
    return absl::ResourceExhaustedError(
        StrCat("no memory for a copy of the state (", bytes,
               " bytes) to save from; set checkpoint.async = false"));
  }
  staging_capacity_ = bytes;
  return absl::OkStatus();
}

absl::StatusOr<std::vector<const std::byte*>> Writer::Stage(std::span<const TensorPiece> pieces) {
  RETURN_IF_ERROR(ReserveStaging(pieces));
  const bool copy = NeedsCopy(pieces);
  std::vector<const std::byte*> data;
  std::byte* to = staging_.get();
  for (const TensorPiece& piece : pieces) {
    const auto* from = static_cast<const std::byte*>(piece.tensor.raw());
    data.push_back(copy ? to : from);
    if (!copy || piece.tensor.bytes() == 0) continue;
    if (piece.tensor.on_gpu()) {
      cuda::Copy(to, from, piece.tensor.bytes());
    } else {
      std::memcpy(to, from, piece.tensor.bytes());
    }
    to += piece.tensor.bytes();
  }
  return data;
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
    job_->done = true;
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
  ASSIGN_OR_RETURN(job.data, Stage(job.pieces));
  return absl::OkStatus();
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

// In a thread of its own with `async`.
void Writer::Write(Job& job) const {
  TraceRange range("checkpoint_write");
  job.result = options_.sharing
                   ? WriteShared(job)
                   : WriteShard(job.temporary, world_.rank(), job.info, job.pieces, job.data);
  if (job.result.ok() && options_.verify_writes) {
    const absl::Status read_back = VerifyShard(job.temporary, *job.result);
    if (!read_back.ok()) job.result = read_back;
  }
  job.done.store(true, std::memory_order_release);
}

bool Writer::LocalDone() const { return !job_ || job_->done.load(std::memory_order_acquire); }

absl::StatusOr<SavedCheckpoint> Writer::Publish() {
  CHECK(in_flight()) << "Publish without Begin";
  TraceRange range("checkpoint_publish");
  const double begun = MonotonicSeconds();
  if (job_->thread.joinable()) job_->thread.join();
  const absl::StatusOr<std::vector<ShardContent>> shards = GatherShards();
  absl::StatusOr<std::string> bytes = "";
  if (world_.rank() == 0) bytes = PublishAsRoot(shards);
  bytes = BroadcastResult(world_, bytes);
  const std::unique_ptr<Job> job = std::move(job_);
  RETURN_IF_ERROR(bytes.status());
  const double now = MonotonicSeconds();
  return SavedCheckpoint{.path = JoinPath(root_, StepName(job->info.step)),
                         .step = job->info.step,
                         .bytes = std::stoll(*bytes),
                         .stalled_seconds = job->stalled + now - begun,
                         .writing_seconds = now - job->begun};
}

absl::StatusOr<std::vector<ShardContent>> Writer::GatherShards() const {
  absl::StatusOr<std::string> mine = "";
  if (job_->result.ok()) {
    mine = ToJson(*job_->result);
  } else {
    mine = job_->result.status();
  }
  std::vector<ShardContent> shards;
  absl::Status failure;  // of the first rank that has one
  for (const absl::StatusOr<std::string>& theirs : GatherResults(world_, mine)) {
    failure.Update(theirs.status());
    if (!theirs.ok()) continue;
    ASSIGN_OR_RETURN(ShardContent shard, ParseShardContent(*theirs));
    shards.push_back(std::move(shard));
  }
  RETURN_IF_ERROR(failure);
  return shards;
}

absl::StatusOr<std::string> Writer::PublishAsRoot(
    const absl::StatusOr<std::vector<ShardContent>>& shards) const {
  const auto publish = [&]() -> absl::StatusOr<std::string> {
    RETURN_IF_ERROR(shards.status());
    ASSIGN_OR_RETURN(const int64_t bytes, Assemble(job_->temporary, job_->info, *shards));
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
  absl::Status status = ApplyRetention(root_, options_.retention, published);
  if (!status.ok()) {
    LogWarn(StrCat("old checkpoints could not be deleted: ", std::string(status.message())));
  }
  return bytes;
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
