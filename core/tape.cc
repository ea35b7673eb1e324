#include "core/tape.h"

#include <algorithm>

#include "core/cost_log.h"

namespace lt2 {

static void NameForLog(const char* op, bool weights = false) {
  if (CostLog* log = CostLog::Current()) log->Name(op, weights);
}

Tensor GradSlot::to() {
  if (!wanted()) return {};
  if (!gradient_->defined()) {
    *gradient_ = Tensor::Empty(like_.shape, like_.dtype, like_.device);
  } else if (!*handed_out_ && !gradient_->unique()) {
    *gradient_ = gradient_->Clone();  // someone still reads it (Set shared it, or a deferred job)
  }
  *handed_out_ = true;
  return gradient_->Reshape(like_.shape);
}

void GradSlot::Set(Tensor gradient) {
  CHECK(!accumulate()) << "Set would lose the gradient that is there already";
  if (!wanted()) return;
  *gradient_ = gradient.Reshape(like_.shape);
  *handed_out_ = false;
}

Tensor GradSlot::Take() { return wanted() ? std::exchange(*gradient_, Tensor()) : Tensor(); }

Var Tape::Input(Tensor value, bool needs_grad) {
  return {.value = std::move(value), .id = needs_grad ? next_id_++ : -1};
}

Var Tape::Made(Tensor value, Rebuildable::Make make, Rebuild kind) const {
  Var var{.value = std::move(value)};
  if (recording_ && rebuild_ >= kind) {
    var.source = std::make_shared<Rebuildable>(std::move(make), var.value);
  }
  return var;
}

Var Tape::Made(Tensor value, Rebuildable::Launch launch) const {
  Var var{.value = std::move(value)};
  if (recording_ && rebuild_ >= Rebuild::kCheap) {
    var.source = std::make_shared<Rebuildable>(std::move(launch), var.value);
  }
  return var;
}

Var Tape::Make(Rebuildable::Make make, Rebuild kind) const {
  Tensor value = make();
  return Made(std::move(value), std::move(make), kind);
}

std::vector<Var> Tape::MakeAll(std::function<std::vector<Tensor>()> make) const {
  const std::vector<Tensor> values = make();
  struct Group {
    std::function<std::vector<Tensor>()> make;
    std::vector<Tensor> waiting;  // made again and not asked for yet
  };
  const auto group = std::make_shared<Group>();
  group->make = std::move(make);
  std::vector<Var> vars;
  for (size_t i = 0; i < values.size(); ++i) {
    vars.push_back(Made(values[i], [group, i] {
      if (group->make) group->waiting = std::exchange(group->make, nullptr)();
      return std::exchange(group->waiting[i], {});
    }));
  }
  return vars;
}

std::vector<Var> Tape::Record(std::span<const Var> in, std::vector<Var> out, Node node) {
  NameForLog(node.name);
  bool needed = !node.params.empty();
  for (const Var& var : in) needed |= var.needs_grad();
  return needed && recording_ ? RecordEntry(in, std::move(out), std::move(node)) : out;
}

std::vector<Var> Tape::RecordEntry(std::span<const Var> in, std::vector<Var> out, Node node) {
  Entry entry{.place = CurrentPlace(), .node = std::move(node)};
  for (const Var& var : in) {
    entry.in.push_back(var.id);
    entry.in_like.push_back({var.value.shape(), var.value.dtype(), var.value.device()});
    if (!launched_.contains(var.id) || !entry.node.weight_grad) continue;
    entry.held_back = true;
    if (var.source) entry.coming.push_back(var.source);
  }
  for (Var& var : out) {
    var.id = next_id_++;
    if (entry.node.launch_grad) launched_.insert(var.id);
    entry.out.push_back(var.id);
    entry.out_shape.push_back(var.shape());
  }
  entries_.push_back(std::move(entry));
  return out;
}

std::vector<Var> Tape::Record(std::span<const Var> in, std::vector<Tensor> out, Node node) {
  std::vector<Var> vars;
  for (Tensor& tensor : out) vars.push_back({.value = std::move(tensor)});
  return Record(in, std::move(vars), std::move(node));
}

Var Tape::Record(std::initializer_list<Var> in, Var out, Node node) {
  return Record(std::span<const Var>(in.begin(), in.size()), std::vector<Var>{std::move(out)},
                std::move(node))[0];
}

Var Tape::Record(std::initializer_list<Var> in, Tensor out, Node node) {
  return Record(in, Var{.value = std::move(out)}, std::move(node));
}

std::vector<Tensor> Tape::Backward(std::vector<Seed> seeds, std::span<const Var> wrt) {
  CHECK(!done_) << "a tape runs backward once";
  done_ = true;
  std::vector<Tensor> grads(next_id_);
  std::vector<bool> wanted_at_end(next_id_, false);
  for (const Var& var : wrt) {
    if (var.needs_grad()) wanted_at_end[var.id] = true;
  }
  for (Seed& seed : seeds) {
    CHECK(seed.var.needs_grad()) << "seed of a value that needs no gradient";
    CHECK(!grads[seed.var.id].defined()) << "two seeds for one value";
    grads[seed.var.id] = std::move(seed.gradient);
  }
  seeds.clear();
  while (!entries_.empty()) {
    Entry entry = std::move(entries_.back());
    entries_.pop_back();
    RunNode(entry, grads, wanted_at_end);
  }
  CHECK(held_back_.empty()) << "weight gradients wait for a gradient that did not set off";
  std::vector<Tensor> result;
  for (const Var& var : wrt) {
    const bool flows = var.needs_grad() && grads[var.id].defined();
    result.push_back(flows ? grads[var.id].Reshape(var.value.shape()) : Tensor());
  }
  return result;
}

void Tape::RunNode(Entry& entry, std::vector<Tensor>& grads,
                   const std::vector<bool>& wanted_at_end) {
  std::vector<Tensor> dy;
  bool any = false;
  for (size_t i = 0; i < entry.out.size(); ++i) {
    Tensor& grad = grads[entry.out[i]];
    any |= grad.defined();
    dy.push_back(grad.defined() ? grad.Reshape(entry.out_shape[i]) : Tensor());
    // It is complete here and, unless the caller wants it, not needed later.
    if (!wanted_at_end[entry.out[i]]) grad = {};
  }
  CHECK(any || entry.node.params.empty())
      << entry.node.name << ": no gradient reached a node that feeds parameters";
  if (!any) return;
  entry.place.backward = true;
  const PlaceScope here(entry.place);
  std::vector<GradSlot> dx;
  const auto handed_out = std::make_unique<bool[]>(entry.in.size());
  for (size_t i = 0; i < entry.in.size(); ++i) {
    const auto first = std::find(entry.in.begin(), entry.in.end(), entry.in[i]);
    dx.push_back(entry.in[i] < 0 ? GradSlot()
                                 : GradSlot(&grads[entry.in[i]], entry.in_like[i],
                                            &handed_out[first - entry.in.begin()]));
  }
  const auto need = [](const std::vector<Param*>& params) {
    for (Param* param : params) param->Need();
  };
  if (entry.node.both_grad && !entry.held_back && !defer_weights_) {
    entry.node.input_grad = std::move(entry.node.both_grad);
    entry.node.weight_grad = nullptr;
  }
  const bool held_back = entry.held_back && !defer_weights_;
  if (held_back) {
    for (const auto& value : entry.coming) value->Begin();
  }
  if (!entry.node.weight_grad) need(entry.node.params);
  if (entry.node.input_grad) entry.node.input_grad(dy, dx);
  NameForLog(entry.node.name);
  if (entry.node.launch_grad) {
    const FinishGrad finish = entry.node.launch_grad(dy);
    NameForLog(entry.node.name);
    RunHeldBack();
    finish(dx);
    NameForLog(entry.node.name);
  }
  if (!entry.node.weight_grad) {
    for (Param* param : entry.node.params) param->Arrive();
    return;
  }
  auto weights = [need, grad = std::move(entry.node.weight_grad),
                  params = std::move(entry.node.params), dy = std::move(dy),
                  name = entry.node.name] {
    need(params);
    grad(dy);
    NameForLog(name, /*weights=*/true);
    for (Param* param : params) param->Arrive();
  };
  if (held_back) return held_back_.push_back(std::move(weights));
  if (defer_weights_) return deferred_.push_back(std::move(weights));
  weights();
}

void Tape::RunHeldBack() {
  for (Job& weights : std::exchange(held_back_, {})) std::exchange(weights, nullptr)();
}

std::vector<Tensor> Tape::Kept(const std::function<std::vector<Tensor>()>& make) {
  if (!kept_) return make();
  if (!replaying_) {
    kept_->push_back(make());
    return kept_->back();
  }
  CHECK_LT(kept_next_, kept_->size()) << "a replay keeps more values than its forward did";
  std::vector<Tensor>& values = (*kept_)[kept_next_++];
  // Only a recording replay is the last reader; a silent one will be replayed itself.
  return recording_ ? std::exchange(values, {}) : values;
}

std::vector<Var> Tape::Recompute(std::span<const Var> in,
                                 std::function<std::vector<Var>(Tape&, std::span<const Var>)> fn) {
  if (!recording_) return fn(*this, in);

  // The silent pass: what operators save dies with `silent`, what they keep goes to the list.
  std::shared_ptr<KeptList> kept = kept_ ? kept_ : std::make_shared<KeptList>();
  const size_t first_kept = kept_next_;
  std::vector<Tensor> outputs;
  {
    Tape silent(stream_);
    silent.recording_ = false;
    silent.kept_ = kept;
    silent.replaying_ = replaying_;
    silent.kept_next_ = kept_next_;
    std::vector<Var> inputs;
    for (const Var& var : in) inputs.push_back({.value = var.value});
    for (Var& var : fn(silent, inputs)) outputs.push_back(std::move(var.value));
    kept_next_ = silent.kept_next_;
  }

  struct Leaf {
    Saved value;
    bool needs_grad;
  };
  std::vector<Leaf> inputs;
  for (const Var& var : in) inputs.push_back({Save(var), var.needs_grad()});
  std::vector<Var> out;
  for (Tensor& tensor : outputs) out.push_back({.value = std::move(tensor)});

  Node node{.name = "recompute"};
  node.input_grad = [this, inputs = std::move(inputs), kept, first_kept, rebuild = rebuild_,
                     fn = std::move(fn)](std::span<const Tensor> dy, std::span<GradSlot> dx) {
    Tape replay(stream_);
    replay.rebuild_ = rebuild;
    replay.kept_ = kept;
    replay.replaying_ = true;
    replay.kept_next_ = first_kept;
    replay.defer_weights_ = defer_weights_;
    std::vector<Var> leaves;
    for (const Leaf& leaf : inputs) {
      leaves.push_back(replay.Input(leaf.value.get(), leaf.needs_grad));
    }
    const std::vector<Var> out = fn(replay, leaves);
    std::vector<Seed> seeds;
    for (size_t i = 0; i < out.size(); ++i) {
      if (dy[i].defined()) seeds.push_back({out[i], dy[i]});
    }
    // A gradient that is there already seeds its leaf, so that the replay adds to it in place.
    for (size_t i = 0; i < leaves.size(); ++i) {
      if (dx[i].accumulate()) seeds.push_back({leaves[i], dx[i].Take()});
    }
    std::vector<Tensor> grads = replay.Backward(std::move(seeds), leaves);
    for (size_t i = 0; i < grads.size(); ++i) {
      if (grads[i].defined()) dx[i].Set(std::move(grads[i]));
    }
    for (auto& job : replay.deferred_) deferred_.push_back(std::move(job));
  };
  return RecordEntry(in, std::move(out), std::move(node));
}

}  // namespace lt2
