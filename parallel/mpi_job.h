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
  MpiJob(MPI_Comm comm, int rank, Collective collective);
  // Something to run on the communication thread in its turn; blocks the queue.
  explicit MpiJob(std::function<void()> call);

  const std::shared_ptr<Completion>& completion() const { return completion_; }
  const Collective& collective() const { return collective_; }
  bool is_call() const { return static_cast<bool>(call_); }

  // Bytes Start needs besides x: what ReduceScatter receives from the other ranks.
  int64_t scratch_bytes() const;
  // `scratch` stays untouched by others until Test has returned true.
  void Start(const Tensor& scratch);
  // True once it is over and the result is in place.
  bool Test();

 private:
  void StartReduceScatter(MPI_Datatype type);
  void FinishReduceScatter();

  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0;
  Collective collective_;
  std::function<void()> call_;
  std::shared_ptr<Completion> completion_ = std::make_shared<Completion>();
  MPI_Request request_ = MPI_REQUEST_NULL;
  Tensor scratch_;
  std::vector<int> counts_, offsets_, out_counts_, out_offsets_;  // MPI reads them until the end
  std::optional<TraceRange> range_;
};

}  // namespace lt2
