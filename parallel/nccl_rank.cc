#include "parallel/nccl_rank.h"

#include <chrono>
#include <cstdlib>
#include <future>

#include "core/cuda/check.h"
#include "core/cuda/stream.h"
#include "core/log.h"
#include "core/strings.h"

namespace lt2 {
namespace {

constexpr std::chrono::milliseconds kInterval(20);
constexpr std::chrono::seconds kAbortLimit(2);

cudaStream_t ThreadStream(Device device) { return cuda::Handle({.device = device}); }

}  // namespace

NcclRank::Pool::~Pool() {
  for (cudaEvent_t event : free) cudaEventDestroy(event);
}

NcclRank::NcclRank(const Nccl& nccl, Device device, std::shared_ptr<Communicator> control)
    : nccl_(nccl), device_(device), control_(std::move(control)) {
  cuda::UseDevice(device_.index);
  int least = 0, greatest = 0;
  LT2_CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  LT2_CUDA_CHECK(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, greatest));
  thread_ = std::thread([this, log = CurrentLogIdentity()] {
    SetLogIdentity(log);
    Run();
  });
}

NcclRank::~NcclRank() {
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
  }
  ended_.notify_all();
  thread_.join();
  LT2_CUDA_CHECK(cudaStreamDestroy(stream_));
}

NcclRank::Event NcclRank::NewEvent() {
  cudaEvent_t event = nullptr;
  {
    std::lock_guard lock(pool_->mutex);
    if (!pool_->free.empty()) {
      event = pool_->free.back();
      pool_->free.pop_back();
    }
  }
  if (event == nullptr) {
    LT2_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  }
  return Event(event, [pool = pool_](cudaEvent_t unused) {
    std::lock_guard lock(pool->mutex);
    pool->free.push_back(unused);
  });
}

void NcclRank::FollowThread() {
  const Event event = NewEvent();
  LT2_CUDA_CHECK(cudaEventRecord(event.get(), ThreadStream(device_)));
  LT2_CUDA_CHECK(cudaStreamWaitEvent(stream_, event.get(), 0));
}

NcclRank::Event NcclRank::Mark() {
  Event event = NewEvent();
  LT2_CUDA_CHECK(cudaEventRecord(event.get(), stream_));
  return event;
}

void NcclRank::ThreadFollows(const Event& event) {
  LT2_CUDA_CHECK(cudaStreamWaitEvent(ThreadStream(device_), event.get(), 0));
}

bool NcclRank::Reached(const Event& event) const {
  const cudaError_t status = cudaEventQuery(event.get());
  if (status == cudaErrorNotReady) return false;
  LT2_CUDA_CHECK(status);
  return true;
}

bool NcclRank::Capturing() const {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  LT2_CUDA_CHECK(cudaStreamIsCapturing(ThreadStream(device_), &status));
  return status != cudaStreamCaptureStatusNone;
}

void NcclRank::Watch(Event event, uint64_t record) {
  std::lock_guard lock(mutex_);
  watched_.push_back({std::move(event), record});
}

void NcclRank::Watch(ncclComm_t comm, std::string_view name) {
  std::lock_guard lock(mutex_);
  comms_.push_back({comm, std::string(name)});
}

void NcclRank::Forget(ncclComm_t comm) {
  std::lock_guard lock(mutex_);
  std::erase_if(comms_, [comm](const Comm& each) { return each.comm == comm; });
}

void NcclRank::Run() {
  cuda::UseDevice(device_.index);
  std::unique_lock lock(mutex_);
  while (!ended_.wait_for(lock, kInterval, [this] { return ending_; })) {
    std::string failure = EndReached();
    if (failure.empty()) failure = CheckComms();
    if (failure.empty()) continue;
    lock.unlock();
    Fail(failure);
  }
}

std::string NcclRank::EndReached() {
  FlightRecorder& recorder = control_->recorder();
  for (; !watched_.empty(); watched_.pop_front()) {
    const Watched& first = watched_.front();
    const cudaError_t status = cudaEventQuery(first.event.get());
    if (status == cudaErrorNotReady) {
      recorder.Start(first.record);
      return "";
    }
    if (status != cudaSuccess) {
      return StrCat("the GPU reports '", cudaGetErrorString(status), "'");
    }
    recorder.End(first.record);
  }
  return "";
}

std::string NcclRank::CheckComms() {
  for (const Comm& each : comms_) {
    ncclResult_t error = ncclSuccess;
    const ncclResult_t asked = nccl_.CommGetAsyncError(each.comm, &error);
    if (asked != ncclSuccess) error = asked;
    if (error == ncclSuccess || error == ncclInProgress) continue;
    return StrCat("NCCL reports '", nccl_.GetErrorString(error), "' on ", each.name, ": ",
                  nccl_.GetLastError(each.comm));
  }
  return "";
}

void NcclRank::AbortComms() {
  std::vector<Comm> comms;
  {
    std::lock_guard lock(mutex_);
    comms.swap(comms_);
  }
  // In a thread of its own: what is broken may hold it up, and the process ends all the same.
  auto done = std::make_shared<std::promise<void>>();
  std::thread([&nccl = nccl_, comms = std::move(comms), done] {
    for (const Comm& each : comms) nccl.CommAbort(each.comm);
    done->set_value();
  }).detach();
  done->get_future().wait_for(kAbortLimit);
}

void NcclRank::Fail(const std::string& what) {
  const std::optional<FlightRecord> waiting = control_->recorder().OldestUnfinished();
  LogError(StrCat(what, waiting ? StrCat("; under way: ", FlightRecorder::Describe(*waiting)) : "",
                  "; the last collectives of this rank:\n", control_->recorder().ToText(8)));
  AbortComms();
  control_->Abort(1);
  std::abort();  // for compilers that lose sight of Abort's end
}

}  // namespace lt2
