#include "launch/bench_ckpt.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include "checkpoints/agreement.h"
#include "checkpoints/reader.h"
#include "checkpoints/writer.h"
#include "core/file.h"
#include "core/status_macros.h"
#include "core/strings.h"
#include "core/trace.h"

namespace lt2 {
namespace {

constexpr int64_t kTensors = 64, kColumns = 1024;

double Median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

// Rows [rank · rows, …) of each tensor, with contents that no file system compresses.
std::vector<TensorPiece> PiecesOf(int64_t bytes, Device device, const Communicator& world) {
  const int64_t rows = std::max<int64_t>(1, bytes / (kTensors * kColumns * 4));
  std::vector<TensorPiece> pieces;
  for (int64_t t = 0; t < kTensors; ++t) {
    std::vector<double> values(rows * kColumns);
    uint64_t state = static_cast<uint64_t>(world.rank() * kTensors + t);
    for (double& value : values) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      value = static_cast<double>(static_cast<int32_t>(state >> 33));
    }
    TensorPiece& piece = pieces.emplace_back();
    piece.group = "param";
    piece.name = StrCat("tensor", t);
    piece.shape = {rows * world.size(), kColumns};
    piece.box = {{rows * world.rank(), 0}, {rows, kColumns}};
    piece.tensor = Tensor::FromHost(values, {rows, kColumns}, DType::kF32, device);
  }
  return pieces;
}

// For a file of the same contents: a disk may take others faster.
std::string BytesOf(const std::vector<TensorPiece>& pieces) {
  std::string bytes;
  for (const TensorPiece& piece : pieces) {
    const Tensor host = piece.tensor.To({Backend::kCpu});
    bytes.append(static_cast<const char*>(host.raw()), host.bytes());
  }
  return bytes;
}

// As a run does that finds time for it between steps: waiting for the threads is no stall.
absl::Status WaitAndPublish(Writer& writer, SavedCheckpoint* saved) {
  std::optional<SavedCheckpoint> done;
  while (!done) {
    while (!writer.LocalDone()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ASSIGN_OR_RETURN(done, writer.Advance());
  }
  *saved = *std::move(done);
  return absl::OkStatus();
}

// Seconds until every rank is done with `work`.
absl::StatusOr<double> Timed(Communicator& world, const std::function<absl::Status()>& work) {
  world.Barrier();
  const double begun = MonotonicSeconds();
  const absl::Status status = work();
  RETURN_IF_ERROR(Agree(world, status));
  world.Barrier();
  return MonotonicSeconds() - begun;
}

}  // namespace

absl::StatusOr<CheckpointTiming> BenchCheckpoint(const std::string& folder, int64_t bytes,
                                                 Device device, int repeats, Communicator& world) {
  const std::string root = world.BroadcastString(TemporaryName(JoinPath(folder, "lt2-bench-ckpt")));
  FileSystem& files = FileSystem::Get();
  RETURN_IF_ERROR(Agree(world, world.rank() == 0 ? files.MakeDirectories(root) : absl::OkStatus()));
  const std::vector<TensorPiece> pieces = PiecesOf(bytes, device, world);
  const std::string plain = BytesOf(pieces);
  CheckpointTiming timing{.bytes = TotalBytes(pieces) * world.size()};
  std::vector<double> stalls, saves, disks, loads;
  const auto measure = [&]() -> absl::Status {
    Writer writer(root, world, {.async = true, .retention = {.keep_last = 1}});
    RETURN_IF_ERROR(Agree(world, writer.ReserveStaging(pieces).status()));
    for (int run = 0; run <= repeats; ++run) {
      SavedCheckpoint saved;
      ASSIGN_OR_RETURN(const double save_s, Timed(world, [&]() -> absl::Status {
                         CheckpointInfo info;
                         info.step = run;
                         RETURN_IF_ERROR(writer.Begin(std::move(info), pieces));
                         writer.AwaitCopy();
                         return WaitAndPublish(writer, &saved);
                       }));
      const std::string file = JoinPath(root, StrCat("plain-", world.rank()));
      // As a save does, beside the one before, which goes when this one is safe.
      ASSIGN_OR_RETURN(const double disk_s,
                       Timed(world, [&] { return WriteFileAtomically(file, plain); }));
      ASSIGN_OR_RETURN(const double load_s, Timed(world, [&]() -> absl::Status {
                         ASSIGN_OR_RETURN(Checkpoint checkpoint,
                                          Checkpoint::Open(saved.path, world));
                         return checkpoint.Load(pieces);
                       }));
      if (run == 0) continue;  // warms up
      stalls.push_back(saved.stalled_seconds);
      saves.push_back(save_s);
      disks.push_back(disk_s);
      loads.push_back(load_s);
    }
    return absl::OkStatus();
  };
  const absl::Status status = measure();
  world.Barrier();
  if (world.rank() == 0) files.RemoveAll(root).IgnoreError();
  RETURN_IF_ERROR(status);
  timing.stall_s = Median(stalls);
  timing.save_s = Median(saves);
  timing.disk_s = Median(disks);
  timing.load_s = Median(loads);
  return timing;
}

}  // namespace lt2
