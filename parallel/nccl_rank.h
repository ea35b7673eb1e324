// What the NCCL communicators of one rank share: the stream on which all their collectives run in
// the order of their calls, events, and a thread that watches over both.
//
// One stream, so that two groups' collectives start in the same order on every rank. It has a
// higher priority than the thread's own: a collective takes the multiprocessors it needs as soon as
// some kernel of the backward leaves them.
#pragma once

#include <cuda_runtime_api.h>

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "parallel/communicator.h"
#include "parallel/nccl.h"

namespace lt2 {

class NcclRank {
 public:
  // Given back for another use when nobody holds it.
  using Event = std::shared_ptr<CUevent_st>;

  // control: the rank's way to end the others.
  NcclRank(const Nccl& nccl, Device device, std::shared_ptr<Communicator> control);
  // All communicators are gone.
  ~NcclRank();
  NcclRank(const NcclRank&) = delete;

  const Nccl& nccl() const { return nccl_; }
  Device device() const { return device_; }
  cudaStream_t stream() const { return stream_; }

  // What is queued on stream() from here on follows what the calling thread has queued.
  void FollowThread();
  // Reached when all that is queued on stream() so far is done.
  Event Mark();
  // What the calling thread queues from here on follows the event.
  void ThreadFollows(const Event& event);
  bool Reached(const Event& event) const;
  // True while the calling thread's work goes into a CUDA graph.
  bool Capturing() const;

  // Notes in the flight recorder when the event is reached.
  void Watch(Event event, uint64_t record);
  // Errors of this communicator end all ranks from here on, until Forget.
  void Watch(ncclComm_t comm, std::string_view name);
  void Forget(ncclComm_t comm);

  // Ends what the GPU does for any communicator: it may wait for a rank that is no more.
  void AbortComms();
  // Says what failed, and ends all ranks.
  [[noreturn]] void Fail(const std::string& what);

 private:
  struct Comm {
    ncclComm_t comm;
    std::string name;
  };
  struct Watched {
    Event event;
    uint64_t record;
  };

  Event NewEvent();
  void Run();
  // What is wrong, or "".
  std::string EndReached();
  std::string CheckComms();

  const Nccl& nccl_;
  const Device device_;
  const std::shared_ptr<Communicator> control_;
  cudaStream_t stream_ = nullptr;

  // Outlives the events that are given back to it.
  struct Pool {
    ~Pool();
    std::mutex mutex;
    std::vector<cudaEvent_t> free;  // guarded by mutex
  };
  const std::shared_ptr<Pool> pool_ = std::make_shared<Pool>();

  std::mutex mutex_;
  std::condition_variable ended_;
  std::vector<Comm> comms_;      // guarded by mutex_, as all below
  std::deque<Watched> watched_;  // in the order of the stream
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace lt2
