#include "parallel/thread_communicator.h"

#include <omp.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "core/cuda.h"
#include "core/home_scope.h"
#include "core/log.h"
#include "core/trace.h"
#include "parallel/carry_out.h"

namespace lt2 {
namespace {

// A collective of one rank, waiting for the others.
struct Posted {
  Collective collective;
  std::shared_ptr<HostCompletion> completion;
  FlightRecorder* recorder = nullptr;
};

struct Group;

// What all groups of one RunRanks share.
struct ThreadWorld {
  std::mutex mutex;
  std::vector<bool> left;  // by world rank
  std::vector<std::weak_ptr<Group>> groups;
};

struct SplitRequest {
  int color = 0, key = 0;
};

struct Group {
  std::string name;
  std::vector<int> members;                                           // world ranks
  std::vector<uint64_t> calls;                                        // collectives so far, by rank
  std::map<uint64_t, std::vector<std::optional<Posted>>> meetings;    // by call number
  std::map<std::pair<int, int>, std::deque<Posted>> sends, receives;  // by (source, destination)
  std::vector<std::optional<SplitRequest>> split;
  std::vector<std::shared_ptr<Group>> split_results;  // by rank
  std::shared_ptr<HostCompletion> split_done = std::make_shared<HostCompletion>();

  explicit Group(std::vector<int> world_ranks, std::string_view the_name)
      : name(the_name),
        members(std::move(world_ranks)),
        calls(members.size()),
        split(members.size()) {}
  int size() const { return static_cast<int>(members.size()); }
};

void CheckAlike(const Collective& a, const Collective& b, int rank, const std::string& group) {
  const bool to_all = a.kind == Collective::Kind::kAllToAll;
  const bool alike = a.kind == b.kind && a.op == b.op && a.peer == b.peer &&
                     a.x.dtype() == b.x.dtype() && a.x.on_gpu() == b.x.on_gpu() &&
                     (to_all || (a.counts == b.counts && a.x.shape().size() == b.x.shape().size()));
  CHECK(alike) << "on " << group << " rank 0 calls " << Name(a.kind) << " '" << a.label << "' "
               << a.x.shape() << " where rank " << rank << " calls " << Name(b.kind) << " '"
               << b.label << "' " << b.x.shape()
               << (a.x.on_gpu() == b.x.on_gpu() ? "" : ", one on a GPU and the other not");
}

void Finish(Posted& posted) {
  posted.recorder->End(posted.collective.record);
  posted.collective = {};
  posted.completion->Set();
}

void Meet(Group& group, std::vector<std::optional<Posted>>& meeting) {
  std::vector<Collective*> ranks;
  for (auto& posted : meeting) ranks.push_back(&posted->collective);
  for (int r = 1; r < group.size(); ++r) CheckAlike(*ranks[0], *ranks[r], r, group.name);
  for (auto& posted : meeting) posted->recorder->Start(posted->collective.record);
  {
    TraceRange range(ranks[0]->label);
    CarryOut(ranks);
  }
  for (auto& posted : meeting) Finish(*posted);
}

void Deliver(Posted& send, Posted& receive, const std::string& group) {
  CHECK_EQ(send.collective.x.size(), receive.collective.x.size())
      << send.collective.label << " on " << group;
  CarryOutMessage(send.collective, receive.collective);
  Finish(send);
  Finish(receive);
}

// Nobody may wait for a rank that has returned.
void CheckNobodyLeft(const ThreadWorld& world, const Group& group) {
  for (const auto& [call, meeting] : group.meetings) {
    const auto waiting = std::find_if(meeting.begin(), meeting.end(),
                                      [](const auto& posted) { return posted.has_value(); });
    for (int r = 0; r < group.size(); ++r) {
      CHECK(!world.left[group.members[r]] || meeting[r].has_value())
          << "rank " << r << " of " << group.name << " has returned while rank "
          << waiting - meeting.begin() << " waits in '" << (*waiting)->collective.label << "'";
    }
  }
  for (const auto* queues : {&group.sends, &group.receives}) {
    for (const auto& [pair, queue] : *queues) {
      const int other = queues == &group.sends ? pair.second : pair.first;
      CHECK(queue.empty() || !world.left[group.members[other]])
          << "rank " << other << " of " << group.name << " has returned while '"
          << queue.front().collective.label << "' waits for it";
    }
  }
  const auto splits = [](const auto& request) { return request.has_value(); };
  if (!std::any_of(group.split.begin(), group.split.end(), splits)) return;
  for (int r = 0; r < group.size(); ++r) {
    CHECK(!world.left[group.members[r]] || group.split[r].has_value())
        << "rank " << r << " of " << group.name << " has returned while others wait in Split";
  }
}

class ThreadCommunicator : public Communicator {
 public:
  ThreadCommunicator(std::shared_ptr<ThreadWorld> world, std::shared_ptr<Group> group, int rank,
                     std::shared_ptr<FlightRecorder> recorder)
      : Communicator(rank, group->size(), group->name, std::move(recorder)),
        world_(std::move(world)),
        group_(std::move(group)) {
    SetHost(rank, group_->size(), "thread");
  }

  std::unique_ptr<Communicator> Split(int color, int key, std::string_view name) override;

  void Abort(int code) override {
    std::fflush(nullptr);
    std::_Exit(code);
  }

 protected:
  Pending Start(Collective collective) override;

 private:
  std::shared_ptr<ThreadWorld> world_;
  std::shared_ptr<Group> group_;
};

Pending ThreadCommunicator::Start(Collective collective) {
  SettleTensors(collective);
  Group& group = *group_;
  Posted mine{std::move(collective), std::make_shared<HostCompletion>(), &recorder()};
  const Pending pending(mine.completion);
  std::lock_guard lock(world_->mutex);
  const Collective::Kind kind = mine.collective.kind;
  if (kind == Collective::Kind::kSend || kind == Collective::Kind::kReceive) {
    const bool send = kind == Collective::Kind::kSend;
    const int peer = mine.collective.peer;
    const std::pair<int, int> pair = send ? std::pair(rank(), peer) : std::pair(peer, rank());
    std::deque<Posted>& others = send ? group.receives[pair] : group.sends[pair];
    if (others.empty()) {
      (send ? group.sends : group.receives)[pair].push_back(std::move(mine));
    } else {
      Posted other = std::move(others.front());
      others.pop_front();
      Deliver(send ? mine : other, send ? other : mine, group.name);
    }
  } else {
    auto& meeting = group.meetings[group.calls[rank()]];
    meeting.resize(size());
    meeting[rank()] = std::move(mine);
    const auto here = [](const auto& posted) { return posted.has_value(); };
    const uint64_t call = group.calls[rank()]++;
    if (std::all_of(meeting.begin(), meeting.end(), here)) {
      Meet(group, meeting);
      group.meetings.erase(call);
    }
  }
  CheckNobodyLeft(*world_, group);
  return pending;
}

std::unique_ptr<Communicator> ThreadCommunicator::Split(int color, int key, std::string_view name) {
  std::shared_ptr<HostCompletion> done;
  std::shared_ptr<Group> part;
  {
    std::lock_guard lock(world_->mutex);
    Group& group = *group_;
    group.split[rank()] = SplitRequest{color, key};
    done = group.split_done;
    const auto here = [](const auto& request) { return request.has_value(); };
    if (std::all_of(group.split.begin(), group.split.end(), here)) {
      std::map<int, std::vector<std::pair<int, int>>> parts;  // color: (key, rank)
      for (int r = 0; r < size(); ++r)
        parts[group.split[r]->color].push_back({group.split[r]->key, r});
      group.split_results.assign(size(), nullptr);
      for (auto& [part_color, ranks] : parts) {
        std::sort(ranks.begin(), ranks.end());
        std::vector<int> members;
        for (auto [part_key, r] : ranks) members.push_back(group.members[r]);
        auto made = std::make_shared<Group>(std::move(members), name);
        world_->groups.push_back(made);
        for (auto [part_key, r] : ranks) group.split_results[r] = made;
      }
      group.split.assign(size(), std::nullopt);
      group.split_done = std::make_shared<HostCompletion>();
      done->Set();
    }
    CheckNobodyLeft(*world_, group);
  }
  done->Wait();
  std::lock_guard lock(world_->mutex);
  part = std::move(group_->split_results[rank()]);
  const int world_rank = group_->members[rank()];
  const auto mine = std::find(part->members.begin(), part->members.end(), world_rank);
  auto split = std::make_unique<ThreadCommunicator>(
      world_, part, static_cast<int>(mine - part->members.begin()), SharedRecorder(*this));
  split->CopyHostFrom(*this);
  return split;
}

}  // namespace

void RunRanks(int n, const std::function<void(Communicator&)>& fn) {
  CHECK_GE(n, 1);
  auto world = std::make_shared<ThreadWorld>();
  world->left.resize(n);
  std::vector<int> members(n);
  for (int r = 0; r < n; ++r) members[r] = r;
  auto everyone = std::make_shared<Group>(std::move(members), "world");
  world->groups.push_back(everyone);

  std::vector<std::thread> threads;
  for (int r = 0; r < n; ++r) {
    threads.emplace_back([&, r] {
      omp_set_num_threads(1);
      SetLogRank(r, n, "thread");
      ThreadCommunicator communicator(world, everyone, r, std::make_shared<FlightRecorder>());
      fn(communicator);
      std::lock_guard lock(world->mutex);
      world->left[r] = true;
      for (const std::weak_ptr<Group>& weak : world->groups) {
        if (auto group = weak.lock()) CheckNobodyLeft(*world, *group);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void RunRanksOnGpu(int n, Device gpu, const std::function<void(Communicator&)>& fn) {
  cuda::UseDevice(gpu.index);
  cuda::Synchronize();  // what the caller has freed, nothing works on
  RunRanks(n, [&](Communicator& communicator) {
    cuda::UseDevice(gpu.index);
    const MemoryPool memory(gpu);
    const HomeScope home(&memory);
    fn(communicator);
    cuda::Synchronize();  // what this rank has freed goes to others
  });
}

}  // namespace lt2
