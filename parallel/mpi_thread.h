// The one thread of a rank that calls MPI, from MPI_Init to MPI_Finalize.
//
// It takes jobs in the order they were posted and starts them in that order, several at a time, so
// that all ranks start the same collectives alike. It polls with a pause that grows, so as to leave
// its core to the threads that compute.
#pragma once

#include <mpi.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "parallel/flight_recorder.h"
#include "parallel/mpi_job.h"

namespace lt2 {

class MpiThread {
 public:
  struct World {
    int rank = 0, size = 1, local_rank = 0, local_size = 1;
    std::string host;
  };

  MpiThread();
  // Finishes what was posted, then MPI_Finalize: every rank must get here.
  ~MpiThread();
  MpiThread(const MpiThread&) = delete;

  const World& world() const { return world_; }
  const std::shared_ptr<FlightRecorder>& recorder() const { return recorder_; }

  // See MpiJob for the tag.
  Pending Post(MPI_Comm comm, int rank, int tag, Collective collective);
  // Runs `call` on the thread in its turn and waits for it.
  void Call(std::function<void()> call);
  [[noreturn]] void Abort(int code);

 private:
  void Run();
  void InitMpi();
  void Enqueue(std::unique_ptr<MpiJob> job);
  // Starts what may start; true if anything did.
  bool StartWaiting();
  // Ends what is over; true if anything was.
  bool EndFinished();
  bool ScratchFor(const MpiJob& job);
  void Pause(double idle_seconds);

  std::shared_ptr<FlightRecorder> recorder_ = std::make_shared<FlightRecorder>();
  World world_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::unique_ptr<MpiJob>> posted_;  // guarded by mutex_
  bool ready_ = false, stop_ = false, abort_ = false;
  int abort_code_ = 0;

  // The thread's own.
  std::deque<std::unique_ptr<MpiJob>> waiting_, in_flight_;
  Tensor scratch_;  // one reduction at a time
  bool scratch_busy_ = false;

  std::thread thread_;
};

}  // namespace lt2
