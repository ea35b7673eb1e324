#include "parallel/pipeline_simulation.h"

#include <algorithm>
#include <map>

#include "core/check.h"

namespace lt2 {
namespace {

using Kind = PipelineJob::Kind;

bool IsSend(Kind kind) { return kind == Kind::kSendActivation || kind == Kind::kSendGradient; }
bool IsReceive(Kind kind) {
  return kind == Kind::kReceiveActivation || kind == Kind::kReceiveGradient;
}
bool OfGradient(Kind kind) { return kind == Kind::kSendGradient || kind == Kind::kReceiveGradient; }

double CostOf(Kind kind, const PipelineCosts& costs) {
  switch (kind) {
    case Kind::kForward:
      return costs.forward;
    case Kind::kHead:
      return costs.head;
    case Kind::kBackwardInput:
      return costs.backward_input;
    case Kind::kBackwardWeight:
      return costs.backward_weight;
    default:
      return 0;
  }
}

// Messages of one kind from one stage to a neighbour, first in, first out.
struct Channel {
  struct Message {
    PipelineJob job;
    double there;
  };
  std::vector<Message> messages;
  std::vector<double> taken;  // when the receiver took each
};

class Simulation {
 public:
  Simulation(const PipelinePlan& plan, const PipelineCosts& costs, Sends sends)
      : plan_(plan),
        costs_(costs),
        sends_(sends),
        next_(plan.stages.size()),
        clock_(plan.stages.size()) {
    times_.spans.resize(plan.stages.size());
    times_.busy.resize(plan.stages.size());
    times_.peak_visits.resize(plan.stages.size());
  }

  // Stages go on alone as far as they can: what they wait for does not depend on the order.
  PipelineTimes Run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t r = 0; r < plan_.stages.size(); ++r) {
        while (next_[r] < plan_.stages[r].size() && Do(r, plan_.stages[r][next_[r]])) {
          ++next_[r];
          moved = true;
        }
      }
    }
    for (size_t r = 0; r < plan_.stages.size(); ++r) {
      times_.deadlock |= next_[r] < plan_.stages[r].size();
      times_.makespan = std::max(times_.makespan, clock_[r]);
      times_.peak_visits[r] = PeakVisits(plan_.stages[r]);
    }
    return std::move(times_);
  }

 private:
  Channel& ChannelFrom(size_t stage, bool gradient) { return channels_[{stage, gradient}]; }
  size_t Sender(size_t receiver, bool gradient) const {
    const size_t P = plan_.stages.size();
    return (receiver + (gradient ? 1 : P - 1)) % P;
  }

  bool Do(size_t r, const PipelineJob& job) {
    const bool gradient = OfGradient(job.kind);
    if (IsReceive(job.kind)) {
      Channel& channel = ChannelFrom(Sender(r, gradient), gradient);
      if (channel.taken.size() == channel.messages.size()) return false;
      const Channel::Message& message = channel.messages[channel.taken.size()];
      CHECK(message.job.micro_batch == job.micro_batch && message.job.loop == job.loop)
          << "stage " << r << " is sent another message than it waits for";
      clock_[r] = std::max(clock_[r], message.there);
      channel.taken.push_back(clock_[r]);
      return true;
    }
    if (IsSend(job.kind)) {
      Channel& channel = ChannelFrom(r, gradient);
      const size_t before = channel.messages.size(), ahead = plan_.receives_ahead;
      if (sends_ == Sends::kBlocking && before >= ahead) {
        if (channel.taken.size() + ahead <= before) return false;
        clock_[r] = std::max(clock_[r], channel.taken[before - ahead]);
      }
      channel.messages.push_back({job, clock_[r] + costs_.message});
      return true;
    }
    const double begin = clock_[r], cost = CostOf(job.kind, costs_);
    clock_[r] += cost;
    times_.busy[r] += cost;
    times_.spans[r].push_back({begin, clock_[r], job});
    return true;
  }

  static int PeakVisits(const std::vector<PipelineJob>& jobs) {
    int live = 0, peak = 0;
    for (const PipelineJob& job : jobs) {
      if (job.kind == Kind::kForward) peak = std::max(peak, ++live);
      if (job.kind == Kind::kBackwardWeight) --live;
    }
    return peak;
  }

  const PipelinePlan& plan_;
  const PipelineCosts costs_;
  const Sends sends_;
  std::vector<size_t> next_;
  std::vector<double> clock_;
  std::map<std::pair<size_t, bool>, Channel> channels_;
  PipelineTimes times_;
};

}  // namespace

double PipelineTimes::bubble() const {
  const double work = *std::max_element(busy.begin(), busy.end());
  return (makespan - work) / work;
}

PipelineTimes Simulate(const PipelinePlan& plan, const PipelineCosts& costs, Sends sends) {
  return Simulation(plan, costs, sends).Run();
}

}  // namespace lt2
