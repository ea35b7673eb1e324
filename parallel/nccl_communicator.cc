#include "parallel/nccl_communicator.h"

#include <algorithm>
#include <cstring>

#include "core/cuda.h"
#include "core/strings.h"
#include "parallel/nccl.h"
#include "parallel/nccl_rank.h"

namespace lt2 {
namespace {

ncclDataType_t TypeOf(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return ncclFloat64;
    case DType::kF32:
      return ncclFloat32;
    case DType::kBF16:
      return ncclBfloat16;
    case DType::kI32:
      return ncclInt32;
    case DType::kU8:
      return ncclUint8;
  }
  return ncclNumTypes;
}

ncclRedOp_t OpOf(Reduction op) {
  return op == Reduction::kSum ? ncclSum : op == Reduction::kMin ? ncclMin : ncclMax;
}

class NcclCommunicator;

// A collective on the stream, or a message that waits for others to share a launch with.
class GpuTicket final : public Completion {
 public:
  GpuTicket(std::shared_ptr<NcclRank> rank, Collective collective)
      : rank_(std::move(rank)), collective_(std::move(collective)) {}
  ~GpuTicket() override { GpuTicket::Wait(); }

  const Collective& collective() const { return collective_; }
  // The message's communicator, until it is queued.
  void set_waiting(NcclCommunicator* communicator) { waiting_ = communicator; }
  void SetQueued(NcclRank::Event event) {
    waiting_ = nullptr;
    event_ = std::move(event);
  }

  bool done() const override { return event_ != nullptr && rank_->Reached(event_); }
  void Wait() override;

 private:
  const std::shared_ptr<NcclRank> rank_;
  // Its tensors are held until what comes after is ordered behind the collective: their memory
  // would be handed out again.
  Collective collective_;
  NcclCommunicator* waiting_ = nullptr;
  NcclRank::Event event_;
  bool waited_ = false;
};

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(std::shared_ptr<NcclRank> shared, std::shared_ptr<Communicator> control);
  ~NcclCommunicator() override;

  std::unique_ptr<Communicator> Split(int color, int key, std::string_view name) override;

  void Abort(int code) override {
    rank_->AbortComms();
    control_->Abort(code);
  }

  // Queues the messages that wait: one launch, so that a ring of ranks may send before it receives.
  void QueueMessages();

 protected:
  Pending Start(Collective collective) override;

 private:
  void Queue(const Collective& c);
  // Each range of c.x from its rank to all, or from all to its rank.
  void QueueRanges(const Collective& c);
  void QueueAllToAll(const Collective& c);
  void Check(ncclResult_t result, const char* call, const Collective& c) const;
  void Follow(GpuTicket& ticket, const NcclRank::Event& event);

  const std::shared_ptr<NcclRank> rank_;
  const std::shared_ptr<Communicator> control_;
  const Nccl& nccl_;
  ncclComm_t comm_ = nullptr;
  std::vector<std::shared_ptr<GpuTicket>> messages_;  // not queued yet
};

void GpuTicket::Wait() {
  if (waited_) return;
  if (waiting_ != nullptr) waiting_->QueueMessages();
  waited_ = true;
  rank_->ThreadFollows(event_);
  collective_ = {};
}

// LT2_NCCL(c, Send, x, …) calls ncclSend(x, …) for the collective c.
#define LT2_NCCL(c, Name, ...) Check(nccl_.Name(__VA_ARGS__), "nccl" #Name, c)

NcclCommunicator::NcclCommunicator(std::shared_ptr<NcclRank> shared,
                                   std::shared_ptr<Communicator> control)
    : Communicator(control->rank(), control->size(), control->name(), SharedRecorder(*control)),
      rank_(std::move(shared)),
      control_(std::move(control)),
      nccl_(rank_->nccl()) {
  CopyHostFrom(*control_);
  const Collective making{.label = "making the communicator"};
  ncclUniqueId id = {};
  if (rank() == 0) LT2_NCCL(making, GetUniqueId, &id);
  const std::string text = control_->BroadcastString(std::string_view(id.internal, sizeof(id)));
  std::memcpy(id.internal, text.data(), sizeof(id));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.commName = name().c_str();
  cuda::UseDevice(rank_->device().index);
  LT2_NCCL(making, CommInitRankConfig, &comm_, size(), id, rank(), &config);
  rank_->Watch(comm_, name());
}

NcclCommunicator::~NcclCommunicator() {
  QueueMessages();
  rank_->Forget(comm_);
  LT2_NCCL({.label = "ending the communicator"}, CommDestroy, comm_);
}

std::unique_ptr<Communicator> NcclCommunicator::Split(int color, int key, std::string_view name) {
  std::unique_ptr<Communicator> part = control_->Split(color, key, name);
  if (part->size() == 1) return part;
  return std::make_unique<NcclCommunicator>(rank_, std::move(part));
}

void NcclCommunicator::Check(ncclResult_t result, const char* call, const Collective& c) const {
  if (result == ncclSuccess || result == ncclInProgress) return;
  rank_->Fail(StrCat(call, " failed: ", nccl_.GetErrorString(result), ", in ", Name(c.kind), " '",
                     c.label, "' of ", c.x.defined() ? c.x.bytes() : 0, " bytes on ", name(), "; ",
                     nccl_.GetLastError(comm_)));
}

Pending NcclCommunicator::Start(Collective collective) {
  if (!collective.x.defined() || !collective.x.on_gpu()) {
    return StartOn(*control_, std::move(collective));
  }
  CHECK(collective.x.device() == rank_->device())
      << collective.label << " of a tensor on GPU " << int{collective.x.device().index};
  const bool message =
      collective.kind == Collective::Kind::kSend || collective.kind == Collective::Kind::kReceive;
  if (!message) QueueMessages();
  rank_->FollowThread();
  auto ticket = std::make_shared<GpuTicket>(rank_, std::move(collective));
  if (message) {
    ticket->set_waiting(this);
    messages_.push_back(ticket);
  } else {
    Queue(ticket->collective());
    Follow(*ticket, rank_->Mark());
  }
  return Pending(std::move(ticket));
}

void NcclCommunicator::Follow(GpuTicket& ticket, const NcclRank::Event& event) {
  const uint64_t record = ticket.collective().record;
  if (rank_->Capturing()) {
    recorder().End(record);  // as far as this call goes: the graph's runs are not seen here
  } else {
    rank_->Watch(event, record);
  }
  ticket.SetQueued(event);
}

void NcclCommunicator::QueueMessages() {
  if (messages_.empty()) return;
  const std::vector<std::shared_ptr<GpuTicket>> messages = std::move(messages_);
  messages_.clear();
  const Collective& first = messages.front()->collective();
  LT2_NCCL(first, GroupStart);
  for (const auto& message : messages) Queue(message->collective());
  LT2_NCCL(first, GroupEnd);
  const NcclRank::Event event = rank_->Mark();
  for (const auto& message : messages) Follow(*message, event);
}

void NcclCommunicator::Queue(const Collective& c) {
  const cudaStream_t stream = rank_->stream();
  const ncclDataType_t type = TypeOf(c.x.dtype());
  const size_t n = c.x.size();
  void* const x = c.x.raw();
  const bool even =
      std::ranges::all_of(c.counts, [&](int64_t each) { return each == c.counts[0]; });
  switch (c.kind) {
    case Collective::Kind::kAllReduce:
      return LT2_NCCL(c, AllReduce, x, x, n, type, OpOf(c.op), comm_, stream);
    case Collective::Kind::kReduceScatter:
      if (!even) return QueueRanges(c);
      return LT2_NCCL(c, ReduceScatter, x, c.range(rank()), c.counts[rank()], type, OpOf(c.op),
                      comm_, stream);
    case Collective::Kind::kAllGather:
      if (!even) return QueueRanges(c);
      return LT2_NCCL(c, AllGather, c.range(rank()), x, c.counts[rank()], type, comm_, stream);
    case Collective::Kind::kBroadcast:
      return LT2_NCCL(c, Broadcast, x, x, n, type, c.peer, comm_, stream);
    case Collective::Kind::kAllToAll:
      return QueueAllToAll(c);
    case Collective::Kind::kSend:
      return LT2_NCCL(c, Send, x, n, type, c.peer, comm_, stream);
    case Collective::Kind::kReceive:
      return LT2_NCCL(c, Recv, x, n, type, c.peer, comm_, stream);
    case Collective::Kind::kBarrier:
      CHECK(false) << "a barrier has no tensor";
  }
}

void NcclCommunicator::QueueRanges(const Collective& c) {
  const cudaStream_t stream = rank_->stream();
  const ncclDataType_t type = TypeOf(c.x.dtype());
  LT2_NCCL(c, GroupStart);
  for (int r = 0; r < size(); ++r) {
    const int64_t n = c.counts[r];
    if (n == 0) continue;
    if (c.kind == Collective::Kind::kReduceScatter) {
      LT2_NCCL(c, Reduce, c.range(r), c.range(r), n, type, OpOf(c.op), r, comm_, stream);
    } else {
      LT2_NCCL(c, Broadcast, c.range(r), c.range(r), n, type, r, comm_, stream);
    }
  }
  LT2_NCCL(c, GroupEnd);
}

void NcclCommunicator::QueueAllToAll(const Collective& c) {
  const cudaStream_t stream = rank_->stream();
  const ncclDataType_t type = TypeOf(c.x.dtype());
  auto* from = static_cast<std::byte*>(c.x.raw());
  auto* to = static_cast<std::byte*>(c.out.raw());
  LT2_NCCL(c, GroupStart);
  for (int r = 0; r < size(); ++r) {
    const int64_t out = c.counts[r], in = c.out_counts[r];
    if (out > 0) LT2_NCCL(c, Send, from, out, type, r, comm_, stream);
    if (in > 0) LT2_NCCL(c, Recv, to, in, type, r, comm_, stream);
    from += out * SizeOf(c.x.dtype());
    to += in * SizeOf(c.x.dtype());
  }
  LT2_NCCL(c, GroupEnd);
}

}  // namespace

absl::Status NcclStatus() { return LoadNccl().status(); }

std::unique_ptr<Communicator> MakeNcclCommunicator(std::unique_ptr<Communicator> control,
                                                   Device device) {
  if (control->size() == 1) return control;
  const absl::StatusOr<const Nccl*> nccl = LoadNccl();
  CHECK(nccl.ok()) << nccl.status();
  std::shared_ptr<Communicator> shared = std::move(control);
  auto rank = std::make_shared<NcclRank>(**nccl, device, shared);
  return std::make_unique<NcclCommunicator>(std::move(rank), std::move(shared));
}

}  // namespace lt2
