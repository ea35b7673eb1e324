// Collectives between a group of ranks: MPI processes, with NCCL for what lies on their GPUs,
// threads, or a group of one.
//
// Every rank of a group makes the same calls in the same order. An *Async call returns a ticket at
// once; the tensor must be left alone until Wait. A group of one returns its input, and on kMeta
// nothing moves, so callers never branch. Misuse and broken transports are fatal (CHECK, or the end
// of all ranks with the collective's name): there is no carrying on without a rank.
//
// On a GPU a collective follows what the calling thread has queued before it, and Wait makes what
// the thread queues from then on follow the collective: neither blocks the host.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/tensor.h"
#include "parallel/flight_recorder.h"

namespace lt2 {

enum class Reduction : uint8_t { kSum, kMin, kMax };

// What a ticket waits for.
class Completion {
 public:
  virtual ~Completion() = default;
  virtual bool done() const = 0;
  virtual void Wait() = 0;
};

// Of a collective on host memory: set once by whoever carries it out.
class HostCompletion final : public Completion {
 public:
  void Set();
  bool done() const override { return done_.load(std::memory_order_acquire) != 0; }
  void Wait() override;
  // True while some thread blocks in Wait: polling may then spend its core.
  bool awaited() const { return waiters_.load(std::memory_order_relaxed) > 0; }

 private:
  std::atomic<int> done_{0}, waiters_{0};
};

// A ticket for a collective under way. The default one is done. On a GPU the first Wait counts, for
// the thread that calls it, and a ticket thrown away waits.
class Pending {
 public:
  Pending() = default;
  explicit Pending(std::shared_ptr<Completion> completion) : completion_(std::move(completion)) {}
  bool done() const { return !completion_ || completion_->done(); }
  void Wait() const {
    if (completion_) completion_->Wait();
  }

 private:
  std::shared_ptr<Completion> completion_;
};

// One collective as a transport sees it, already checked. `label` is a literal: it names the call
// in traces, in the flight recorder and in messages.
struct Collective {
  enum class Kind : uint8_t {
    kAllReduce,
    kReduceScatter,
    kAllGather,
    kBroadcast,
    kAllToAll,
    kSend,
    kReceive,
    kBarrier,
  };
  Kind kind = Kind::kBarrier;
  const char* label = "";
  Tensor x, out;  // out: AllToAll only
  Reduction op = Reduction::kSum;
  std::vector<int64_t> counts, out_counts;  // elements a rank
  int peer = 0;                             // root, destination or source
  uint64_t record = 0;                      // in the flight recorder

  int64_t offset(int rank) const;    // where rank's elements begin in x
  std::byte* range(int rank) const;  // and in memory
};
const char* Name(Collective::Kind kind);

// What a rank has given to collectives of its group: messages, and the bytes in them that another
// rank wants, each counted once however many want it.
struct Traffic {
  int64_t messages = 0, bytes = 0;
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::string& name() const { return name_; }
  // Where this rank stands among those of its host (threads share cores by it).
  int local_rank() const { return local_rank_; }
  int local_size() const { return local_size_; }
  const std::string& host() const { return host_; }

  // Dtypes: F32, F64, I32, U8, and BF16 on a GPU. All are in place on x. Reductions go in rank
  // order; on GPUs in an order of NCCL's that is the same each time for the same group and size.
  //
  // Every rank ends with the reduction over ranks.
  Pending AllReduceAsync(const Tensor& x, Reduction op, const char* label = "all_reduce");
  // x is cut into size() ranges of counts[r] elements, which fill it. Afterwards range rank() of x
  // holds the reduction; the other ranges are undefined.
  Pending ReduceScatterAsync(const Tensor& x, std::span<const int64_t> counts, Reduction op,
                             const char* label = "reduce_scatter");
  // The same cut; every rank contributes its own range of x and ends with the whole.
  Pending AllGatherAsync(const Tensor& x, std::span<const int64_t> counts,
                         const char* label = "all_gather");
  Pending BroadcastAsync(const Tensor& x, int root, const char* label = "broadcast");
  // Range r of x (counts[r] elements) goes to rank r; range r of out (out_counts[r]) comes from it.
  Pending AllToAllAsync(const Tensor& x, std::span<const int64_t> counts, const Tensor& out,
                        std::span<const int64_t> out_counts, const char* label = "all_to_all");
  // Messages between a pair of ranks arrive in the order they were sent. On GPUs messages have
  // their place among the group's other collectives, which is the same at both ends.
  Pending SendAsync(const Tensor& x, int to, const char* label = "send");
  Pending ReceiveAsync(const Tensor& x, int from, const char* label = "receive");
  Pending BarrierAsync(const char* label = "barrier");

  void AllReduce(const Tensor& x, Reduction op, const char* label = "all_reduce") {
    AllReduceAsync(x, op, label).Wait();
  }
  void ReduceScatter(const Tensor& x, std::span<const int64_t> counts, Reduction op,
                     const char* label = "reduce_scatter") {
    ReduceScatterAsync(x, counts, op, label).Wait();
  }
  void AllGather(const Tensor& x, std::span<const int64_t> counts,
                 const char* label = "all_gather") {
    AllGatherAsync(x, counts, label).Wait();
  }
  void Broadcast(const Tensor& x, int root, const char* label = "broadcast") {
    BroadcastAsync(x, root, label).Wait();
  }
  void AllToAll(const Tensor& x, std::span<const int64_t> counts, const Tensor& out,
                std::span<const int64_t> out_counts, const char* label = "all_to_all") {
    AllToAllAsync(x, counts, out, out_counts, label).Wait();
  }
  void Send(const Tensor& x, int to, const char* label = "send") { SendAsync(x, to, label).Wait(); }
  void Receive(const Tensor& x, int from, const char* label = "receive") {
    ReceiveAsync(x, from, label).Wait();
  }
  void Barrier(const char* label = "barrier") { BarrierAsync(label).Wait(); }

  // Control data. Every rank gets everyone's string, in rank order.
  std::vector<std::string> GatherStrings(std::string_view mine);
  // Root's string, at every rank.
  std::string BroadcastString(std::string_view text, int root = 0);

  // Whether ranks take turns, from the first to the last and back: all that a rank may do is to
  // hear from one neighbour and to tell the other (parallel/row_tiles.h).
  virtual bool in_turn() const { return false; }

  // A group of the ranks that gave the same color, ordered by (key, rank). Blocks.
  virtual std::unique_ptr<Communicator> Split(int color, int key, std::string_view name) = 0;

  // Ends every rank with this exit code, now. Print the reason first. A rank that fails while
  // others go on must call it: they would wait for it forever.
  [[noreturn]] virtual void Abort(int code) = 0;

  FlightRecorder& recorder() const { return *recorder_; }
  const Traffic& traffic() const { return traffic_; }

 protected:
  Communicator(int rank, int size, std::string_view name, std::shared_ptr<FlightRecorder> recorder)
      : rank_(rank), size_(size), name_(name), recorder_(std::move(recorder)) {}
  void SetHost(int local_rank, int local_size, std::string_view host) {
    local_rank_ = local_rank;
    local_size_ = local_size;
    host_ = host;
  }
  void CopyHostFrom(const Communicator& other) {
    SetHost(other.local_rank_, other.local_size_, other.host_);
  }

  // Carries out a collective of two or more ranks.
  virtual Pending Start(Collective collective) = 0;
  // For a transport that leaves some collectives to another one.
  static Pending StartOn(Communicator& other, Collective collective) {
    return other.Start(std::move(collective));
  }
  static const std::shared_ptr<FlightRecorder>& SharedRecorder(const Communicator& other) {
    return other.recorder_;
  }

 private:
  Pending Issue(Collective collective);

  int rank_, size_;
  std::string name_;
  int local_rank_ = 0, local_size_ = 1;
  std::string host_ = "localhost";
  std::shared_ptr<FlightRecorder> recorder_;
  Traffic traffic_;
};

// A process alone: every collective returns its input.
std::unique_ptr<Communicator> MakeGroupOfOne(std::string_view name = "world");

// Rank `rank` of `size` for a dry run, all on one host: collectives on kMeta tensors, and nothing
// else, are allowed.
std::unique_ptr<Communicator> MakeMetaCommunicator(int rank, int size);

}  // namespace lt2
