// One collective on its way through MPI: posted, started without blocking, tested until it is over.
#pragma once

#include <mpi.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "core/trace.h"
#include "parallel/communicator.h"

namespace lt2 {

// Fatal unless result is MPI_SUCCESS: says what failed and ends all ranks.
void CheckMpi(int result, const char* what, const char* label);

class MpiJob {
 public:
  // AllReduce has counts too: the range that each rank sums.
  // tag: the same on all ranks of comm for the same collective, above 0, not used by others under
  // way.
  MpiJob(MPI_Comm comm, int rank, int tag, Collective collective);
  // Something to run on the communication thread in its turn; blocks the queue.
  explicit MpiJob(std::function<void()> call);

  const std::shared_ptr<HostCompletion>& completion() const { return completion_; }
  const Collective& collective() const { return collective_; }
  bool is_call() const { return static_cast<bool>(call_); }

  // True if Start needs scratch memory: for what a reduction receives from the other ranks.
  bool reduces() const;
  int64_t scratch_bytes() const;
  // `scratch` stays untouched by others until Test has returned true.
  void Start(const Tensor& scratch);
  // True once it is over and the result is in place.
  bool Test();

 private:
  // A reduction is an exchange of ranges, sums in rank order, and for AllReduce the spreading of
  // the sums: the bytes of a ring, and bits that depend on the number of ranks alone. Plain
  // messages with the job's tag, so that a second phase may begin while other collectives are under
  // way.
  void StartExchange();
  void ReduceOwnRange();
  void StartSpread();
  void Message(bool send, std::byte* data, int64_t elements, int other);

  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0, tag_ = 0;
  Collective collective_;
  std::function<void()> call_;
  std::shared_ptr<HostCompletion> completion_ = std::make_shared<HostCompletion>();
  std::vector<MPI_Request> requests_;
  bool exchanging_ = false;  // in the first phase of a reduction
  Tensor scratch_;
  std::vector<int> counts_, offsets_, out_counts_, out_offsets_;  // MPI reads them until the end
  std::optional<TraceRange> range_;
};

}  // namespace lt2
