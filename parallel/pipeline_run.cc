#include "parallel/pipeline_run.h"

#include <deque>
#include <map>

#include "core/place.h"
#include "core/strings.h"

namespace lt2 {
namespace {

using Kind = PipelineJob::Kind;
using Visit = std::pair<int, int>;  // micro-batch, loop

// The messages of one kind that a stage is sent, each asked for before it is needed.
class Inbox {
 public:
  Inbox(std::span<const PipelineJob> jobs, Kind receive, int ahead, Communicator* link,
        const char* label, PipelineStage& compute)
      : link_(link), label_(label), compute_(compute) {
    for (const PipelineJob& job : jobs) left_ += job.kind == receive;
    while (ahead-- > 0) Ask();
  }
  Tensor Take() {
    auto [pending, message] = std::move(asked_.front());
    asked_.pop_front();
    pending.Wait();
    Ask();
    return message;
  }

 private:
  void Ask() {
    if (left_ == 0) return;
    --left_;
    Tensor message = compute_.NewMessage();
    Pending pending = link_->ReceiveAsync(message, PipelineLinks::kSender, label_);
    asked_.emplace_back(std::move(pending), std::move(message));
  }

  Communicator* const link_;
  const char* const label_;
  PipelineStage& compute_;
  int left_ = 0;
  std::deque<std::pair<Pending, Tensor>> asked_;
};

// Messages under way, and their memory.
class Outbox {
 public:
  void Send(Communicator& link, Tensor message, const char* label) {
    while (!sent_.empty() && sent_.front().first.done()) sent_.pop_front();
    Pending pending = link.SendAsync(message, PipelineLinks::kReceiver, label);
    sent_.emplace_back(std::move(pending), std::move(message));
  }
  ~Outbox() {
    for (const auto& [pending, message] : sent_) pending.Wait();
  }

 private:
  std::deque<std::pair<Pending, Tensor>> sent_;
};

class Run {
 public:
  Run(const PipelinePlan& plan, int stage, const PipelineLinks& links, PipelineStage& compute)
      : stage_(stage),
        stages_(static_cast<int>(plan.stages.size())),
        jobs_(plan.stages[stage]),
        links_(links),
        compute_(compute),
        activations_in_(jobs_, Kind::kReceiveActivation, plan.receives_ahead,
                        links.activations_in.get(), "activation from the stage before", compute),
        gradients_in_(jobs_, Kind::kReceiveGradient, plan.receives_ahead, links.gradients_in.get(),
                      "gradient from the next stage", compute) {}

  void Do() {
    for (const PipelineJob& job : jobs_) Do(job);
    CHECK(activations_.empty() && gradients_.empty()) << "messages that nobody reads";
  }

 private:
  // Of one stage, whose messages stay with it: what a visit reads is where the one before left it.
  bool alone() const { return stages_ == 1; }

  void Do(const PipelineJob& job) {
    const int mb = job.micro_batch, loop = job.loop;
    const Visit visit(mb, loop);
    const PlaceScope here({.loop = static_cast<int16_t>(loop)});
    switch (job.kind) {
      case Kind::kForward: {
        const bool embeds = stage_ == 0 && loop == 0;
        const Tensor x = embeds ? Tensor() : Take(activations_, {mb, stage_ > 0 ? loop : loop - 1});
        Put(activations_, outputs_, visit, compute_.Forward(mb, loop, x));
        return;
      }
      case Kind::kHead:
        if (const Tensor dx = compute_.Head(mb, Take(activations_, {mb, loop - 1})); dx.defined()) {
          Put(gradients_, inputs_gradients_, visit, dx);
        }
        return;
      case Kind::kBackwardInput: {
        const bool last = stage_ + 1 == stages_;
        const Tensor dy = Take(gradients_, {mb, last ? loop + 1 : loop});
        const Tensor dx = compute_.BackwardInput(mb, loop, dy);
        if (dx.defined()) Put(gradients_, inputs_gradients_, visit, dx);
        return;
      }
      case Kind::kBackwardWeight:
        return compute_.BackwardWeight(mb, loop);
      case Kind::kSendActivation:
        return outbox_.Send(*links_.activations_out, Take(outputs_, visit),
                            "activation to the next stage");
      case Kind::kSendGradient:
        return outbox_.Send(*links_.gradients_out, Take(inputs_gradients_, visit),
                            "gradient to the stage before");
      case Kind::kReceiveActivation:
        activations_[visit] = activations_in_.Take();
        return;
      case Kind::kReceiveGradient:
        gradients_[visit] = gradients_in_.Take();
        return;
    }
  }

  using Messages = std::map<Visit, Tensor>;
  static Tensor Take(Messages& from, Visit visit) {
    auto found = from.find(visit);
    CHECK(found != from.end()) << "a message of micro-batch " << visit.first << ", loop "
                               << visit.second << " is not there";
    Tensor message = std::move(found->second);
    from.erase(found);
    return message;
  }
  void Put(Messages& here, Messages& to_send, Visit visit, Tensor message) {
    (alone() ? here : to_send)[visit] = std::move(message);
  }

  const int stage_, stages_;
  const std::vector<PipelineJob>& jobs_;
  const PipelineLinks& links_;
  PipelineStage& compute_;
  Inbox activations_in_, gradients_in_;
  Outbox outbox_;
  // By the visit that made them: received and not read; made and not sent.
  Messages activations_, gradients_, outputs_, inputs_gradients_;
};

}  // namespace

void RunPipeline(const PipelinePlan& plan, int stage, const PipelineLinks& links,
                 PipelineStage& compute) {
  Run(plan, stage, links, compute).Do();
}

}  // namespace lt2
