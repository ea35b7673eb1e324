#include "parallel/mpi_thread.h"

#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "core/log.h"

namespace lt2 {
namespace {

using std::chrono::microseconds;

// Polling: without a pause this long, with one after it. While a thread of this rank waits for the
// result it would not use the core anyway.
constexpr double kSpinSeconds = 20e-6, kSpinAwaitedSeconds = 1e-3;
constexpr int kShortestPauseUs = 20, kLongestPauseUs = 100;

std::string HostName() {
  char name[256] = "localhost";
  gethostname(name, sizeof(name) - 1);
  return name;
}

}  // namespace

MpiThread::MpiThread() {
  // Signals are for the thread that runs the training loop.
  sigset_t all, before;
  sigfillset(&all);
  for (int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) sigdelset(&all, fault);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { Run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return ready_; });
}

MpiThread::~MpiThread() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

Pending MpiThread::Post(MPI_Comm comm, int rank, int tag, Collective collective) {
  auto job = std::make_unique<MpiJob>(comm, rank, tag, std::move(collective));
  Pending pending(job->completion());
  Enqueue(std::move(job));
  return pending;
}

void MpiThread::Call(std::function<void()> call) {
  auto job = std::make_unique<MpiJob>(std::move(call));
  const std::shared_ptr<HostCompletion> completion = job->completion();
  Enqueue(std::move(job));
  completion->Wait();
}

void MpiThread::Enqueue(std::unique_ptr<MpiJob> job) {
  {
    std::lock_guard lock(mutex_);
    posted_.push_back(std::move(job));
  }
  changed_.notify_all();
}

void MpiThread::Abort(int code) {
  std::fflush(nullptr);
  if (std::this_thread::get_id() == thread_.get_id()) MPI_Abort(MPI_COMM_WORLD, code);
  {
    std::lock_guard lock(mutex_);
    abort_ = true;
    abort_code_ = code;
  }
  changed_.notify_all();
  // The thread calls MPI_Abort. If it is stuck inside MPI, dying without MPI_Finalize makes the
  // launcher end the others.
  std::this_thread::sleep_for(std::chrono::seconds(3));
  std::_Exit(code);
}

void MpiThread::InitMpi() {
  int provided = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  world_.host = HostName();
  MPI_Comm_rank(MPI_COMM_WORLD, &world_.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world_.size);
  MPI_Comm host = MPI_COMM_NULL;
  CheckMpi(
      MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, world_.rank, MPI_INFO_NULL, &host),
      "MPI_Comm_split_type", "host");
  MPI_Comm_rank(host, &world_.local_rank);
  MPI_Comm_size(host, &world_.local_size);
  MPI_Comm_free(&host);
  SetLogRank(world_.rank, world_.size, world_.host);
}

void MpiThread::Run() {
  prctl(PR_SET_TIMERSLACK, 1000);  // pauses of 20 us would otherwise take 70
  InitMpi();
  {
    std::lock_guard lock(mutex_);
    ready_ = true;
  }
  changed_.notify_all();

  double idle_since = MonotonicSeconds();
  while (true) {
    {
      std::unique_lock lock(mutex_);
      if (waiting_.empty() && in_flight_.empty()) {
        changed_.wait(lock, [&] { return abort_ || stop_ || !posted_.empty(); });
        if (stop_ && posted_.empty()) break;
      }
      if (abort_) MPI_Abort(MPI_COMM_WORLD, abort_code_);
      for (auto& job : posted_) waiting_.push_back(std::move(job));
      posted_.clear();
    }
    const bool started = StartWaiting();
    const bool ended = EndFinished();
    const double now = MonotonicSeconds();
    if (started || ended) {
      idle_since = now;
    } else {
      Pause(now - idle_since);
    }
  }
  MPI_Finalize();
}

bool MpiThread::StartWaiting() {
  bool any = false;
  while (!waiting_.empty() && ScratchFor(*waiting_.front())) {
    std::unique_ptr<MpiJob> job = std::move(waiting_.front());
    waiting_.pop_front();
    if (!job->is_call()) recorder_->Start(job->collective().record);
    job->Start(job->reduces() ? scratch_ : Tensor());
    in_flight_.push_back(std::move(job));
    any = true;
  }
  return any;
}

// Takes the scratch memory for the job if it needs it; false while another holds it. Later jobs
// wait behind, so that the order of starts is the order of posts on every rank.
bool MpiThread::ScratchFor(const MpiJob& job) {
  if (!job.reduces()) return true;
  if (scratch_busy_) return false;
  const int64_t bytes = job.scratch_bytes();
  if (!scratch_.defined() || scratch_.size() < bytes) {
    scratch_ = Tensor::Empty({bytes}, DType::kU8, {});
  }
  scratch_busy_ = true;
  return true;
}

bool MpiThread::EndFinished() {
  bool any = false;
  for (auto it = in_flight_.begin(); it != in_flight_.end();) {
    MpiJob& job = **it;
    if (!job.Test()) {
      ++it;
      continue;
    }
    if (!job.is_call()) recorder_->End(job.collective().record);
    if (job.reduces()) scratch_busy_ = false;
    const std::shared_ptr<HostCompletion> completion = job.completion();
    it = in_flight_.erase(it);  // gives up its tensors before the waiter goes on
    completion->Set();
    any = true;
  }
  return any;
}

void MpiThread::Pause(double idle_seconds) {
  const bool awaited = std::any_of(in_flight_.begin(), in_flight_.end(),
                                   [](const auto& job) { return job->completion()->awaited(); });
  if (idle_seconds < (awaited ? kSpinAwaitedSeconds : kSpinSeconds)) {
    sched_yield();
    return;
  }
  const int pause =
      std::clamp(static_cast<int>(idle_seconds * 1e6 / 4), kShortestPauseUs, kLongestPauseUs);
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, microseconds(pause), [&] { return abort_ || !posted_.empty(); });
}

}  // namespace lt2
