#include "parallel/pipeline_plan.h"

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <tuple>

#include "core/check.h"
#include "parallel/pipeline_simulation.h"

namespace lt2 {
namespace {

using Kind = PipelineJob::Kind;
using Visit = std::pair<int, int>;  // micro-batch, loop

// A stage that begins with more forwards holds more visits, and waits less where jobs of different
// length do not meet or messages take time.
constexpr int kMostExtraForwards = 2;

// The order in which every stage runs visits forward, and backward.
std::vector<Visit> Visits(const PipelineShape& shape, bool backward) {
  std::vector<Visit> visits;
  const int P = shape.stages;
  for (int begin = 0; begin < shape.micro_batches;) {
    const int size = begin == 0 ? P + shape.micro_batches % P : P;
    for (int t = 0; t < shape.loops; ++t) {
      const int loop = backward ? shape.loops - 1 - t : t;
      for (int i = 0; i < size; ++i) visits.emplace_back(begin + i, loop);
    }
    begin += size;
  }
  return visits;
}

// Messages come in the order in which they are sent: where a stage first needs a later one, it
// takes those before it too.
void ReceiveInOrder(std::vector<std::vector<PipelineJob>>& plan, int receiver, bool gradient) {
  const int P = static_cast<int>(plan.size());
  const Kind send = gradient ? Kind::kSendGradient : Kind::kSendActivation;
  const Kind receive = gradient ? Kind::kReceiveGradient : Kind::kReceiveActivation;
  std::vector<PipelineJob> sent;
  for (PipelineJob job : plan[(receiver + (gradient ? 1 : P - 1)) % P]) {
    if (job.kind != send) continue;
    job.kind = receive;
    sent.push_back(job);
  }
  std::vector<PipelineJob> jobs;
  auto next = sent.begin();
  for (const PipelineJob& job : plan[receiver]) {
    if (job.kind != receive) {
      jobs.push_back(job);
      continue;
    }
    const auto needed = std::find(next, sent.end(), job);  // end: it has come already
    if (needed == sent.end()) continue;
    jobs.insert(jobs.end(), next, needed + 1);
    next = needed + 1;
  }
  plan[receiver] = std::move(jobs);
}

// Computes the stages' orders by letting time pass with F = Bi = W = 1 and a head that takes none:
// a stage's forwards and backwards are in a fixed order; a head comes as soon as it can, weight
// gradients when too many wait or nothing else can be done.
class Planner {
 public:
  Planner(const PipelineShape& shape, int extra_forwards)
      : shape_(shape),
        forwards_(Visits(shape, false)),
        backwards_(Visits(shape, true)),
        stages_(shape.stages) {
    const int group = shape.stages + shape.micro_batches % shape.stages;
    for (int r = 0; r < shape.stages; ++r) {
      const int behind = shape.stages - 1 - r;
      const int first = shape.loops == 1 ? behind : 2 * behind + (shape.loops - 1) * group;
      stages_[r].first_forwards = std::min(first + extra_forwards, visits());
    }
  }

  double makespan() const { return std::ranges::max(stages_, {}, &Stage::clock).clock; }
  PipelinePlan Run() {
    while (Advance()) {
    }
    PipelinePlan plan;
    for (const Stage& stage : stages_) {
      CHECK_EQ(stage.done(), 2 * visits()) << "no stage can go on";
      plan.stages.push_back(stage.jobs);
    }
    for (const bool gradient : {false, true}) {
      for (int r = 0; r < shape_.stages; ++r) ReceiveInOrder(plan.stages, r, gradient);
    }
    return plan;
  }

 private:
  struct Stage {
    int first_forwards = 0;
    int forwards = 0, backwards = 0;  // done
    std::deque<Visit> weights;        // whose gradients wait
    double clock = 0;
    std::vector<PipelineJob> jobs;
    int done() const { return forwards + backwards; }
  };
  struct Choice {
    double start;
    int rank;  // of two that may start at once the lower one does
    int stage;
    PipelineJob job;
    bool operator<(const Choice& other) const {
      return std::tie(start, rank, stage) < std::tie(other.start, other.rank, other.stage);
    }
  };

  int visits() const { return static_cast<int>(forwards_.size()); }
  double Cost(Kind kind) const {
    const PipelineCosts& c = shape_.costs;
    return kind == Kind::kForward         ? c.forward
           : kind == Kind::kHead          ? c.head
           : kind == Kind::kBackwardInput ? c.backward_input
                                          : c.backward_weight;
  }
  int HeldBack(int stage) const { return shape_.pipeline == Pipeline::kRingZb ? stage : 0; }

  // When what a job reads is there.
  std::optional<double> Ready(int r, const PipelineJob& job) const {
    const int last = shape_.stages - 1, mb = job.micro_batch, loop = job.loop;
    const auto at = [&](Kind kind, int stage, int of_loop) -> std::optional<double> {
      const auto found = done_.find({kind, stage, mb, of_loop});
      if (found == done_.end()) return std::nullopt;
      return found->second + (shape_.stages > 1 ? shape_.costs.message : 0);
    };
    if (job.kind == Kind::kForward) {
      if (r == 0 && loop == 0) return 0;
      return r == 0 ? at(Kind::kForward, last, loop - 1) : at(Kind::kForward, r - 1, loop);
    }
    if (job.kind == Kind::kHead) return at(Kind::kForward, last, shape_.loops - 1);
    if (r < last) return at(Kind::kSendGradient, r + 1, loop);
    return loop + 1 < shape_.loops ? at(Kind::kSendGradient, 0, loop + 1)
                                   : at(Kind::kHead, 0, shape_.loops);
  }

  std::optional<PipelineJob> NextOfOrder(const Stage& stage) const {
    if (stage.done() == 2 * visits()) return std::nullopt;
    const bool forward =
        stage.forwards < visits() && stage.forwards - stage.backwards <= stage.first_forwards;
    const auto [mb, loop] = forward ? forwards_[stage.forwards] : backwards_[stage.backwards];
    return PipelineJob{forward ? Kind::kForward : Kind::kBackwardInput, mb, loop};
  }

  void Consider(int r, int rank, const std::optional<PipelineJob>& job) {
    const std::optional<double> ready = job ? Ready(r, *job) : std::nullopt;
    if (!ready) return;
    const Choice choice{std::max(stages_[r].clock, *ready), rank, r, *job};
    if (!best_ || choice < *best_) best_ = choice;
  }

  bool Advance() {
    best_.reset();
    for (int r = 0; r < shape_.stages; ++r) {
      const Stage& stage = stages_[r];
      if (r == 0 && heads_ < shape_.micro_batches) {
        Consider(0, 0, PipelineJob{Kind::kHead, heads_, shape_.loops});
      }
      const bool full = static_cast<int>(stage.weights.size()) > HeldBack(r);
      if (!full) Consider(r, 2, NextOfOrder(stage));
      if (stage.weights.empty()) continue;
      const auto [mb, loop] = stage.weights.front();
      const Choice weights{stage.clock, full ? 1 : 3, r, {Kind::kBackwardWeight, mb, loop}};
      if (!best_ || weights < *best_) best_ = weights;
    }
    if (best_) Do(*best_);
    return best_.has_value();
  }

  void Do(const Choice& choice) {
    Stage& stage = stages_[choice.stage];
    const PipelineJob job = choice.job;
    const int r = choice.stage, last = shape_.stages - 1;
    const bool zb = shape_.pipeline == Pipeline::kRingZb;
    stage.clock = choice.start + Cost(job.kind);
    const auto note = [&](Kind kind) { done_[{kind, r, job.micro_batch, job.loop}] = stage.clock; };
    const auto say = [&](Kind kind, int loop) {
      if (shape_.stages > 1) stage.jobs.push_back({kind, job.micro_batch, loop});
    };
    const auto send_gradient = [&] {
      note(Kind::kSendGradient);
      if (r > 0 || job.loop > 0) say(Kind::kSendGradient, job.loop);
    };
    switch (job.kind) {
      case Kind::kForward:
        if (r > 0) say(Kind::kReceiveActivation, job.loop);
        if (r == 0 && job.loop > 0) say(Kind::kReceiveActivation, job.loop - 1);
        stage.jobs.push_back(job);
        note(job.kind);
        say(Kind::kSendActivation, job.loop);
        ++stage.forwards;
        break;
      case Kind::kHead:
        say(Kind::kReceiveActivation, job.loop - 1);
        stage.jobs.push_back(job);
        note(job.kind);
        say(Kind::kSendGradient, job.loop);
        ++heads_;
        break;
      case Kind::kBackwardInput:
        say(Kind::kReceiveGradient, r < last ? job.loop : job.loop + 1);
        stage.jobs.push_back(job);
        if (zb) send_gradient();
        stage.weights.emplace_back(job.micro_batch, job.loop);
        ++stage.backwards;
        break;
      case Kind::kBackwardWeight:
        stage.jobs.push_back(job);
        if (!zb) send_gradient();
        stage.weights.pop_front();
        break;
      default:
        break;
    }
  }

  const PipelineShape shape_;
  const std::vector<Visit> forwards_, backwards_;
  std::vector<Stage> stages_;
  int heads_ = 0;
  // When jobs ended, and when gradients were sent; by kind, stage, micro-batch, loop.
  std::map<std::tuple<Kind, int, int, int>, double> done_;
  std::optional<Choice> best_;
};

}  // namespace

const char* Name(Pipeline pipeline) { return pipeline == Pipeline::kRing ? "ring" : "ring-zb"; }

const char* Name(Kind kind) {
  switch (kind) {
    case Kind::kForward:
      return "forward";
    case Kind::kHead:
      return "head";
    case Kind::kBackwardInput:
      return "backward input";
    case Kind::kBackwardWeight:
      return "backward weight";
    case Kind::kSendActivation:
      return "send activation";
    case Kind::kReceiveActivation:
      return "receive activation";
    case Kind::kSendGradient:
      return "send gradient";
    case Kind::kReceiveGradient:
      return "receive gradient";
  }
  return "?";
}

PipelinePlan MakePipelinePlan(const PipelineShape& shape) {
  CHECK_GE(shape.stages, 1);
  CHECK_GE(shape.loops, 1);
  CHECK_GE(shape.micro_batches, shape.stages);
  PipelinePlan best;
  double least = 0;
  for (int extra = 0; extra <= kMostExtraForwards; ++extra) {
    Planner planner(shape, extra);
    PipelinePlan plan = planner.Run();
    if (extra > 0 && planner.makespan() >= least) continue;
    least = planner.makespan();
    best = std::move(plan);
  }
  while (Simulate(best, shape.costs, Sends::kBlocking).deadlock) ++best.receives_ahead;
  return best;
}

PipelinePlan MakeForwardPlan(int stages, int loops, int micro_batches) {
  PipelinePlan plan;
  const auto say = [&](int stage, Kind kind, int micro_batch, int loop) {
    plan.stages[stage].push_back({kind, micro_batch, loop});
  };
  for (int r = 0; r < stages; ++r) {
    plan.stages.emplace_back();
    for (int first = 0; first < micro_batches; first += stages) {
      const int end = std::min(first + stages, micro_batches);
      for (int loop = 0; loop <= loops; ++loop) {
        for (int m = first; m < end; ++m) {
          const bool head = loop == loops;
          if (head && r > 0) continue;
          const bool arrives = stages > 1 && (r > 0 || loop > 0);
          if (arrives) say(r, Kind::kReceiveActivation, m, r > 0 ? loop : loop - 1);
          say(r, head ? Kind::kHead : Kind::kForward, m, loop);
          if (!head && stages > 1) say(r, Kind::kSendActivation, m, loop);
        }
      }
    }
  }
  return plan;
}

}  // namespace lt2
