#include "parallel/communicator.h"

#include <cstdlib>
#include <cstring>
#include <limits>
#include <numeric>

#include "core/cost_log.h"

namespace lt2 {
namespace {

int64_t Sum(std::span<const int64_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

void CheckCounts(std::span<const int64_t> counts, const Tensor& x, int size, const char* label) {
  CHECK_EQ(static_cast<int>(counts.size()), size) << label;
  for (int64_t count : counts) CHECK_GE(count, 0) << label;
  CHECK_EQ(Sum(counts), x.size()) << label;
}

Tensor Bytes(int64_t size) { return Tensor::Empty({size}, DType::kU8, {}); }

class GroupOfOne : public Communicator {
 public:
  explicit GroupOfOne(std::string_view name)
      : Communicator(0, 1, name, std::make_shared<FlightRecorder>()) {}
  std::unique_ptr<Communicator> Split(int, int, std::string_view name) override {
    return MakeGroupOfOne(name);
  }
  void Abort(int code) override {
    std::fflush(nullptr);
    std::_Exit(code);
  }

 protected:
  Pending Start(Collective) override { return {}; }
};

class MetaCommunicator : public Communicator {
 public:
  MetaCommunicator(int rank, int size)
      : Communicator(rank, size, "meta", std::make_shared<FlightRecorder>()) {
    SetHost(rank, size, "meta");
  }
  std::unique_ptr<Communicator> Split(int, int, std::string_view) override {
    CHECK(false) << "a dry run cannot split its communicator: make one for each group";
    return nullptr;
  }
  void Abort(int code) override { std::_Exit(code); }

 protected:
  Pending Start(Collective collective) override {
    CHECK(false) << "a dry run has nobody for " << collective.label << " of real data";
    return {};
  }
};

// Of a collective on kMeta, where nothing moves.
class DryWait final : public Completion {
 public:
  DryWait(CostLog& log, size_t call) : log_(log), call_(call) {}
  bool done() const override { return true; }
  void Wait() override {
    if (CostLog::Current() == &log_) log_.AddWait(call_);
  }

 private:
  CostLog& log_;
  const size_t call_;
};

}  // namespace

void HostCompletion::Set() {
  done_.store(1, std::memory_order_release);
  done_.notify_all();
}

void HostCompletion::Wait() {
  if (done()) return;
  waiters_.fetch_add(1, std::memory_order_relaxed);
  while (!done()) done_.wait(0, std::memory_order_acquire);
  waiters_.fetch_sub(1, std::memory_order_relaxed);
}

int64_t Collective::offset(int rank) const {
  return std::accumulate(counts.begin(), counts.begin() + rank, int64_t{0});
}

std::byte* Collective::range(int rank) const {
  return static_cast<std::byte*>(x.raw()) + offset(rank) * SizeOf(x.dtype());
}

const char* Name(Collective::Kind kind) {
  switch (kind) {
    case Collective::Kind::kAllReduce:
      return "AllReduce";
    case Collective::Kind::kReduceScatter:
      return "ReduceScatter";
    case Collective::Kind::kAllGather:
      return "AllGather";
    case Collective::Kind::kBroadcast:
      return "Broadcast";
    case Collective::Kind::kAllToAll:
      return "AllToAll";
    case Collective::Kind::kSend:
      return "Send";
    case Collective::Kind::kReceive:
      return "Receive";
    case Collective::Kind::kBarrier:
      return "Barrier";
  }
  return "?";
}

// Of what rank `rank` hands over, as Traffic counts them.
static int64_t BytesGiven(const Collective& c, int rank) {
  switch (c.kind) {
    case Collective::Kind::kAllReduce:
    case Collective::Kind::kSend:
      return c.x.bytes();
    case Collective::Kind::kBroadcast:
      return rank == c.peer ? c.x.bytes() : 0;
    case Collective::Kind::kAllGather:
      return c.counts[rank] * SizeOf(c.x.dtype());
    case Collective::Kind::kReduceScatter:
    case Collective::Kind::kAllToAll:
      return (c.x.size() - c.counts[rank]) * SizeOf(c.x.dtype());
    case Collective::Kind::kReceive:
    case Collective::Kind::kBarrier:
      return 0;
  }
  return 0;
}

// Of what its link carries, where the collective is the best for long messages (a ring).
static double BytesSent(const Collective& c, int rank, int size) {
  const auto given = static_cast<double>(BytesGiven(c, rank));
  switch (c.kind) {
    case Collective::Kind::kAllReduce:
      return 2 * given * (size - 1) / size;
    case Collective::Kind::kAllGather:
      return given * (size - 1);
    default:
      return given;
  }
}

Pending Communicator::Issue(Collective collective) {
  const bool barrier = collective.kind == Collective::Kind::kBarrier;
  if (!barrier) {
    CHECK(collective.x.defined()) << collective.label << " of an undefined tensor";
    if (collective.x.on_meta()) {
      CostLog* const log = size_ > 1 ? CostLog::Current() : nullptr;
      if (log == nullptr) return {};
      return Pending(std::make_shared<DryWait>(
          *log, log->AddCollective(this, collective.label, BytesSent(collective, rank_, size_))));
    }
    if (collective.x.on_host()) {
      CHECK(collective.x.dtype() != DType::kBF16) << collective.label << ": no bf16 on the host";
      // MPI counts are ints.
      CHECK_LE(collective.x.size(), int64_t{std::numeric_limits<int>::max()}) << collective.label;
    }
  }
  const int64_t bytes = barrier ? 0 : collective.x.bytes();
  collective.record = recorder_->Issue(name_, Name(collective.kind), collective.label, bytes);
  if (size_ > 1) {
    ++traffic_.messages;
    traffic_.bytes += BytesGiven(collective, rank_);
    return Start(std::move(collective));
  }
  if (collective.out.defined()) collective.out.CopyFrom(collective.x);
  recorder_->Start(collective.record);
  recorder_->End(collective.record);
  return {};
}

Pending Communicator::AllReduceAsync(const Tensor& x, Reduction op, const char* label) {
  return Issue({.kind = Collective::Kind::kAllReduce, .label = label, .x = x, .op = op});
}

Pending Communicator::ReduceScatterAsync(const Tensor& x, std::span<const int64_t> counts,
                                         Reduction op, const char* label) {
  CheckCounts(counts, x, size_, label);
  return Issue({.kind = Collective::Kind::kReduceScatter,
                .label = label,
                .x = x,
                .op = op,
                .counts = {counts.begin(), counts.end()}});
}

Pending Communicator::AllGatherAsync(const Tensor& x, std::span<const int64_t> counts,
                                     const char* label) {
  CheckCounts(counts, x, size_, label);
  return Issue({.kind = Collective::Kind::kAllGather,
                .label = label,
                .x = x,
                .counts = {counts.begin(), counts.end()}});
}

Pending Communicator::BroadcastAsync(const Tensor& x, int root, const char* label) {
  CHECK(0 <= root && root < size_) << label << " from rank " << root << " of " << size_;
  return Issue({.kind = Collective::Kind::kBroadcast, .label = label, .x = x, .peer = root});
}

Pending Communicator::AllToAllAsync(const Tensor& x, std::span<const int64_t> counts,
                                    const Tensor& out, std::span<const int64_t> out_counts,
                                    const char* label) {
  CheckCounts(counts, x, size_, label);
  CheckCounts(out_counts, out, size_, label);
  CHECK_EQ(x.dtype(), out.dtype()) << label;
  CHECK_EQ(counts[rank_], out_counts[rank_]) << label << ": what a rank sends itself";
  return Issue({.kind = Collective::Kind::kAllToAll,
                .label = label,
                .x = x,
                .out = out,
                .counts = {counts.begin(), counts.end()},
                .out_counts = {out_counts.begin(), out_counts.end()}});
}

Pending Communicator::SendAsync(const Tensor& x, int to, const char* label) {
  CHECK(0 <= to && to < size_ && to != rank_) << label << " to rank " << to << " of " << size_;
  return Issue({.kind = Collective::Kind::kSend, .label = label, .x = x, .peer = to});
}

Pending Communicator::ReceiveAsync(const Tensor& x, int from, const char* label) {
  CHECK(0 <= from && from < size_ && from != rank_) << label << " from " << from << " of " << size_;
  return Issue({.kind = Collective::Kind::kReceive, .label = label, .x = x, .peer = from});
}

Pending Communicator::BarrierAsync(const char* label) {
  return Issue({.kind = Collective::Kind::kBarrier, .label = label});
}

std::vector<std::string> Communicator::GatherStrings(std::string_view mine) {
  if (size_ == 1) return {std::string(mine)};
  CHECK_LT(mine.size(), size_t{std::numeric_limits<int>::max()});
  Tensor lengths = Tensor::Zeros({size_}, DType::kI32, {});
  lengths.data<int32_t>()[rank_] = static_cast<int32_t>(mine.size());
  AllGather(lengths, std::vector<int64_t>(size_, 1), "gather_string_lengths");
  const std::vector<int64_t> counts(lengths.data<int32_t>(), lengths.data<int32_t>() + size_);

  Tensor bytes = Bytes(Sum(counts));
  char* text = reinterpret_cast<char*>(bytes.data<uint8_t>());
  const int64_t begin = std::accumulate(counts.begin(), counts.begin() + rank_, int64_t{0});
  mine.copy(text + begin, mine.size());
  AllGather(bytes, counts, "gather_strings");
  std::vector<std::string> strings;
  for (int64_t count : counts) {
    strings.emplace_back(text, count);
    text += count;
  }
  return strings;
}

std::string Communicator::BroadcastString(std::string_view text, int root) {
  if (size_ == 1) return std::string(text);
  CHECK_LT(text.size(), size_t{std::numeric_limits<int>::max()});
  Tensor length = Tensor::Zeros({1}, DType::kI32, {});
  if (rank_ == root) *length.data<int32_t>() = static_cast<int32_t>(text.size());
  Broadcast(length, root, "broadcast_string_length");
  Tensor bytes = Bytes(*length.data<int32_t>());
  if (rank_ == root) std::memcpy(bytes.raw(), text.data(), text.size());
  Broadcast(bytes, root, "broadcast_string");
  return std::string(reinterpret_cast<const char*>(bytes.data<uint8_t>()), bytes.size());
}

std::unique_ptr<Communicator> MakeGroupOfOne(std::string_view name) {
  return std::make_unique<GroupOfOne>(name);
}

std::unique_ptr<Communicator> MakeMetaCommunicator(int rank, int size) {
  return std::make_unique<MetaCommunicator>(rank, size);
}

}  // namespace lt2
