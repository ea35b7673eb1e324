#include "parallel/mpi_job.h"

#include <cstdio>
#include <utility>

#include "core/log.h"
#include "parallel/reduce_elements.h"

namespace lt2 {
namespace {

MPI_Datatype TypeOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return MPI_FLOAT;
    case DType::kF64:
      return MPI_DOUBLE;
    case DType::kI32:
      return MPI_INT32_T;
    case DType::kU8:
      return MPI_UINT8_T;
    default:
      CHECK(false) << "no MPI type for dtype " << dtype;
  }
  return MPI_DATATYPE_NULL;
}

// Counts as MPI's ints, and where each range begins.
void ToMpi(std::span<const int64_t> counts, std::vector<int>* out, std::vector<int>* offsets) {
  int offset = 0;
  for (int64_t count : counts) {
    out->push_back(static_cast<int>(count));
    offsets->push_back(offset);
    offset += static_cast<int>(count);
  }
}

}  // namespace

void CheckMpi(int result, const char* what, const char* label) {
  if (result == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "unknown error";
  int length = 0;
  MPI_Error_string(result, text, &length);
  std::fprintf(stderr, "lt2: %s%s '%s' failed: %s\n", RankPrefix().c_str(), what, label, text);
  std::fflush(nullptr);
  MPI_Abort(MPI_COMM_WORLD, 1);
}

MpiJob::MpiJob(MPI_Comm comm, int rank, int tag, Collective collective)
    : comm_(comm), rank_(rank), tag_(tag), collective_(std::move(collective)) {}

MpiJob::MpiJob(std::function<void()> call) : call_(std::move(call)) {}

bool MpiJob::reduces() const {
  return !is_call() && (collective_.kind == Collective::Kind::kReduceScatter ||
                        collective_.kind == Collective::Kind::kAllReduce);
}

int64_t MpiJob::scratch_bytes() const {
  const int64_t others = static_cast<int64_t>(collective_.counts.size()) - 1;
  return others * collective_.counts[rank_] * SizeOf(collective_.x.dtype());
}

void MpiJob::Start(const Tensor& scratch) {
  if (is_call()) return call_();
  range_.emplace(collective_.label);
  const Collective& c = collective_;
  const bool barrier = c.kind == Collective::Kind::kBarrier;
  const MPI_Datatype type = barrier ? MPI_DATATYPE_NULL : TypeOf(c.x.dtype());
  void* const x = barrier ? nullptr : c.x.raw();
  const int size = barrier ? 0 : static_cast<int>(c.x.size());
  scratch_ = scratch;
  int result = MPI_SUCCESS;
  MPI_Request request = MPI_REQUEST_NULL;
  switch (c.kind) {
    case Collective::Kind::kAllReduce:
    case Collective::Kind::kReduceScatter:
      return StartExchange();
    case Collective::Kind::kAllGather:
      ToMpi(c.counts, &counts_, &offsets_);
      result = MPI_Iallgatherv(MPI_IN_PLACE, 0, type, x, counts_.data(), offsets_.data(), type,
                               comm_, &request);
      break;
    case Collective::Kind::kBroadcast:
      result = MPI_Ibcast(x, size, type, c.peer, comm_, &request);
      break;
    case Collective::Kind::kAllToAll:
      ToMpi(c.counts, &counts_, &offsets_);
      ToMpi(c.out_counts, &out_counts_, &out_offsets_);
      result = MPI_Ialltoallv(x, counts_.data(), offsets_.data(), type, c.out.raw(),
                              out_counts_.data(), out_offsets_.data(), type, comm_, &request);
      break;
    case Collective::Kind::kSend:
      result = MPI_Isend(x, size, type, c.peer, 0, comm_, &request);
      break;
    case Collective::Kind::kReceive:
      result = MPI_Irecv(x, size, type, c.peer, 0, comm_, &request);
      break;
    case Collective::Kind::kBarrier:
      result = MPI_Ibarrier(comm_, &request);
      break;
  }
  CheckMpi(result, Name(c.kind), c.label);
  requests_.push_back(request);
}

void MpiJob::Message(bool send, std::byte* data, int64_t elements, int other) {
  if (elements == 0) return;
  const Collective& c = collective_;
  const int count = static_cast<int>(elements);
  const MPI_Datatype type = TypeOf(c.x.dtype());
  MPI_Request& request = requests_.emplace_back(MPI_REQUEST_NULL);
  CheckMpi(send ? MPI_Isend(data, count, type, other, tag_, comm_, &request)
                : MPI_Irecv(data, count, type, other, tag_, comm_, &request),
           Name(c.kind), c.label);
}

void MpiJob::StartExchange() {
  exchanging_ = true;
  const std::vector<int64_t>& counts = collective_.counts;
  const int64_t bytes = counts[rank_] * SizeOf(collective_.x.dtype());
  std::byte* to = bytes > 0 ? static_cast<std::byte*>(scratch_.raw()) : nullptr;
  for (int r = 0; r < static_cast<int>(counts.size()); ++r) {
    if (r == rank_) continue;
    Message(/*send=*/false, to, counts[rank_], r);
    Message(/*send=*/true, collective_.range(r), counts[r], r);
    to += bytes;
  }
}

void MpiJob::ReduceOwnRange() {
  const Collective& c = collective_;
  const int64_t elements = c.counts[rank_];
  if (elements == 0) return;
  const std::byte* received = static_cast<const std::byte*>(scratch_.raw());
  std::vector<const void*> in;
  for (int r = 0; r < static_cast<int>(c.counts.size()); ++r) {
    in.push_back(r == rank_ ? collective_.range(r) : received);
    if (r != rank_) received += elements * SizeOf(c.x.dtype());
  }
  ReduceInOrder(in, collective_.range(rank_), elements, c.x.dtype(), c.op);
}

void MpiJob::StartSpread() {
  const std::vector<int64_t>& counts = collective_.counts;
  for (int r = 0; r < static_cast<int>(counts.size()); ++r) {
    if (r == rank_) continue;
    Message(/*send=*/false, collective_.range(r), counts[r], r);
    Message(/*send=*/true, collective_.range(rank_), counts[rank_], r);
  }
}

bool MpiJob::Test() {
  if (is_call()) return true;
  int over = 0;
  const int n = static_cast<int>(requests_.size());
  CheckMpi(n == 1 ? MPI_Test(requests_.data(), &over, MPI_STATUS_IGNORE)
                  : MPI_Testall(n, requests_.data(), &over, MPI_STATUSES_IGNORE),
           Name(collective_.kind), collective_.label);
  if (!over) return false;
  if (std::exchange(exchanging_, false)) {
    ReduceOwnRange();
    if (collective_.kind == Collective::Kind::kAllReduce) {
      requests_.clear();
      StartSpread();
      return false;
    }
  }
  scratch_ = {};
  range_.reset();
  return true;
}

}  // namespace lt2
