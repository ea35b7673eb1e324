#include "parallel/mpi_job.h"

#include <algorithm>
#include <cstdio>

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

MPI_Op OpOf(Reduction op) {
  return op == Reduction::kSum ? MPI_SUM : op == Reduction::kMin ? MPI_MIN : MPI_MAX;
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

MpiJob::MpiJob(MPI_Comm comm, int rank, Collective collective)
    : comm_(comm), rank_(rank), collective_(std::move(collective)) {}

MpiJob::MpiJob(std::function<void()> call) : call_(std::move(call)) {}

int64_t MpiJob::scratch_bytes() const {
  if (collective_.kind != Collective::Kind::kReduceScatter || is_call()) return 0;
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
  switch (c.kind) {
    case Collective::Kind::kAllReduce:
      result = MPI_Iallreduce(MPI_IN_PLACE, x, size, type, OpOf(c.op), comm_, &request_);
      break;
    case Collective::Kind::kReduceScatter:
      return StartReduceScatter(type);
    case Collective::Kind::kAllGather:
      ToMpi(c.counts, &counts_, &offsets_);
      result = MPI_Iallgatherv(MPI_IN_PLACE, 0, type, x, counts_.data(), offsets_.data(), type,
                               comm_, &request_);
      break;
    case Collective::Kind::kBroadcast:
      result = MPI_Ibcast(x, size, type, c.peer, comm_, &request_);
      break;
    case Collective::Kind::kAllToAll:
      ToMpi(c.counts, &counts_, &offsets_);
      ToMpi(c.out_counts, &out_counts_, &out_offsets_);
      result = MPI_Ialltoallv(x, counts_.data(), offsets_.data(), type, c.out.raw(),
                              out_counts_.data(), out_offsets_.data(), type, comm_, &request_);
      break;
    case Collective::Kind::kSend:
      result = MPI_Isend(x, size, type, c.peer, 0, comm_, &request_);
      break;
    case Collective::Kind::kReceive:
      result = MPI_Irecv(x, size, type, c.peer, 0, comm_, &request_);
      break;
    case Collective::Kind::kBarrier:
      result = MPI_Ibarrier(comm_, &request_);
      break;
  }
  CheckMpi(result, Name(c.kind), c.label);
}

// Every rank sends each other rank its range and adds up what it receives in rank order: the bytes
// of a ring, sums whose bits depend on the number of ranks alone.
void MpiJob::StartReduceScatter(MPI_Datatype type) {
  const Collective& c = collective_;
  ToMpi(c.counts, &counts_, &offsets_);
  const int mine = counts_[rank_];
  counts_[rank_] = 0;
  const int ranks = static_cast<int>(counts_.size());
  int offset = 0;
  for (int r = 0; r < ranks; ++r) {
    out_counts_.push_back(r == rank_ ? 0 : mine);
    out_offsets_.push_back(offset);
    offset += out_counts_.back();
  }
  void* const received = scratch_.defined() ? scratch_.raw() : nullptr;
  CheckMpi(MPI_Ialltoallv(c.x.raw(), counts_.data(), offsets_.data(), type, received,
                          out_counts_.data(), out_offsets_.data(), type, comm_, &request_),
           Name(c.kind), c.label);
}

void MpiJob::FinishReduceScatter() {
  const Collective& c = collective_;
  if (c.counts[rank_] == 0) return;
  const int64_t element = SizeOf(c.x.dtype());
  std::byte* const mine = static_cast<std::byte*>(c.x.raw()) + c.offset(rank_) * element;
  const std::byte* const received = static_cast<const std::byte*>(scratch_.raw());
  std::vector<const void*> in;
  for (size_t r = 0; r < c.counts.size(); ++r) {
    const bool own = static_cast<int>(r) == rank_;
    in.push_back(own ? mine : received + out_offsets_[r] * element);
  }
  ReduceInOrder(in, mine, c.counts[rank_], c.x.dtype(), c.op);
}

bool MpiJob::Test() {
  if (is_call()) return true;
  int over = 0;
  CheckMpi(MPI_Test(&request_, &over, MPI_STATUS_IGNORE), Name(collective_.kind),
           collective_.label);
  if (!over) return false;
  if (collective_.kind == Collective::Kind::kReduceScatter) FinishReduceScatter();
  scratch_ = {};
  range_.reset();
  return true;
}

}  // namespace lt2
