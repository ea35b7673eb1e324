// One visit's record: forward once, backward once, freeing as it goes.
//
// A visit is one micro-batch going through one stage once. Operators compute eagerly and record a
// Node: how to get the gradients of its inputs, and, separately where it can wait, of its
// parameters. Backward runs the record in reverse; recording order is already a topological order.
//
//   Tape tape(stream);
//   Var x = tape.Input(tokens, /*needs_grad=*/true);
//   Var y = Linear(tape, RmsNorm(tape, x, norm, eps), proj);
//   Tensor dx = tape.Backward({{y, dy}}, {x})[0];
//
// What a node needs of the forward it captures as tape.Save(var). An operator whose output follows
// cheaply from what is saved anyway computes it through tape.Make; with set_rebuild such values are
// not kept for backward but made again there.
//
// Parameters are not on the tape: a node lists those it feeds, and each is told of every use.
//
// Where a value's gradient travels to other ranks (Node::launch_grad), the weight gradients of the
// nodes that read the value are held back, in their order, and done while it is under way.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "core/param.h"
#include "core/place.h"
#include "core/saved.h"
#include "core/tensor.h"

namespace lt2 {

// A tensor with a place on a tape.
struct Var {
  Tensor value;
  int id = -1;                                    // < 0: no gradient is needed
  std::shared_ptr<Rebuildable> source = nullptr;  // where backward can make the value again
  bool needs_grad() const { return id >= 0; }
  const Shape& shape() const { return value.shape(); }
};

// The same value and the same place in the record under another shape.
inline Var Reshape(const Var& var, const Shape& shape) {
  return {.value = var.value.Reshape(shape), .id = var.id, .source = var.source};
}

// What a gradient must look like.
struct TensorLike {
  Shape shape;
  DType dtype = DType::kF32;
  Device device;
};

// Where a backward writes the gradient of one input.
class GradSlot {
 public:
  GradSlot() = default;  // nobody wants this gradient
  // handed_out: whether a slot of this gradient has given its memory to the running kernel; slots
  // of one node share it where the same value is two inputs.
  GradSlot(Tensor* gradient, const TensorLike& like, bool* handed_out)
      : gradient_(gradient), like_(like), handed_out_(handed_out) {}

  bool wanted() const { return gradient_ != nullptr; }
  // True if a gradient is there already: the kernel must add to to(), not overwrite it.
  bool accumulate() const { return wanted() && gradient_->defined(); }
  // The memory to write or add to; undefined where not wanted. Ask accumulate() first.
  Tensor to();
  // Hands over a finished gradient without a copy; only where accumulate() is false.
  void Set(Tensor gradient);
  // Moves out what is there (undefined if nothing), so that Set may follow.
  Tensor Take();

 private:
  Tensor* gradient_ = nullptr;
  TensorLike like_;
  bool* handed_out_ = nullptr;
};

// dy: one per output, undefined where no gradient flowed into it. dx: one slot per input.
using InputGrad = std::function<void(std::span<const Tensor> dy, std::span<GradSlot> dx)>;
using WeightGrad = std::function<void(std::span<const Tensor> dy)>;
// Starts a gradient on its way; what it returns waits for it.
using FinishGrad = std::function<void(std::span<GradSlot> dx)>;
using LaunchGrad = std::function<FinishGrad(std::span<const Tensor> dy)>;

struct Node {
  const char* name = "";
  std::vector<Param*> params = {};
  InputGrad input_grad = {};
  WeightGrad weight_grad =
      {};  // empty unless it can be deferred; then input_grad adds to params too
  LaunchGrad launch_grad = {};  // instead of input_grad
  // Instead of input_grad and weight_grad, where the weights' gradients need not wait.
  InputGrad both_grad = {};
};

class Tape {
 public:
  explicit Tape(Stream& stream) : stream_(stream) {}
  Tape(const Tape&) = delete;  // closures hold its address
  Tape& operator=(const Tape&) = delete;

  Stream& stream() const { return stream_; }
  Device device() const { return stream_.device; }

  // A leaf. With needs_grad its gradient can be asked of Backward.
  Var Input(Tensor value, bool needs_grad = false);
  // Puts a node on the record if any input or parameter needs a gradient and recording is on.
  std::vector<Var> Record(std::span<const Var> in, std::vector<Tensor> out, Node node);
  Var Record(std::initializer_list<Var> in, Tensor out, Node node);
  // The same for outputs that Make made.
  std::vector<Var> Record(std::span<const Var> in, std::vector<Var> out, Node node);
  Var Record(std::initializer_list<Var> in, Var out, Node node);

  // What a node captures to read `var` in backward.
  static Saved Save(const Var& var) {
    return var.source ? Saved(var.source, var.shape()) : Saved(var.value);
  }
  // A value from what `make` captured by Save, through the same kernel each time it is called.
  Var Make(Rebuildable::Make make, Rebuild kind = Rebuild::kCheap) const;
  // Values that one kernel makes; made again together, when the first is asked for.
  std::vector<Var> MakeAll(std::function<std::vector<Tensor>()> make) const;
  // `value`, which `make` would make again: for what a kernel wrote beside another output.
  Var Made(Tensor value, Rebuildable::Make make, Rebuild kind = Rebuild::kCheap) const;
  // The same for a value that comes from other ranks: it is launched before the input gradients of
  // nodes whose weight gradients are held back for it.
  Var Made(Tensor value, Rebuildable::Launch launch) const;

  // Runs fn now without keeping what it saves, and again inside Backward. Nests.
  std::vector<Var> Recompute(std::span<const Var> in,
                             std::function<std::vector<Var>(Tape&, std::span<const Var>)> fn);
  // Values that survive Recompute: made once, handed out again when the forward is replayed.
  // For attention outputs, scan states and collectives. In a plain tape simply make().
  std::vector<Tensor> Kept(const std::function<std::vector<Tensor>()>& make);

  // The gradient of sum <seed tensor, seed var> for each of `wrt` (undefined where none flows).
  // Tells each parameter of each arrival. Once per tape.
  struct Seed {
    Var var;
    Tensor gradient;
  };
  std::vector<Tensor> Backward(std::vector<Seed> seeds, std::span<const Var> wrt = {});

  // False: operators compute and nothing is recorded (evaluation, decoding).
  void set_recording(bool on) { recording_ = on; }
  bool recording() const { return recording_; }
  // True if anyone will read what an operator saves for its backward: when recording, and in the
  // silent pass of Recompute, whose Kept values the replay hands out again.
  bool saves() const { return recording_ || kept_ != nullptr; }
  // What Make made is made again in backward instead of kept, up to this kind. The same bits.
  void set_rebuild(Rebuild most) { rebuild_ = most; }
  Rebuild rebuild() const { return rebuild_; }
  // Weight gradients wait in a list, first in first out, so that the sums have the same bits.
  void set_defer_weights(bool on) { defer_weights_ = on; }
  std::vector<std::function<void()>> TakeDeferred() { return std::exchange(deferred_, {}); }

 private:
  struct Entry {
    std::vector<int> in, out;
    std::vector<TensorLike> in_like;
    std::vector<Shape> out_shape;
    Place place;
    Node node;
    bool held_back = false;  // its weight gradient, which will ask for what is coming
    std::vector<std::shared_ptr<Rebuildable>> coming = {};
  };
  using KeptList = std::vector<std::vector<Tensor>>;
  using Job = std::function<void()>;

  std::vector<Var> RecordEntry(std::span<const Var> in, std::vector<Var> out, Node node);
  void RunNode(Entry& entry, std::vector<Tensor>& grads, const std::vector<bool>& wanted_at_end);
  void RunHeldBack();

  Stream& stream_;
  std::vector<Entry> entries_;
  int next_id_ = 0;
  bool recording_ = true, defer_weights_ = false, done_ = false;
  Rebuild rebuild_ = Rebuild::kNothing;
  std::vector<Job> deferred_, held_back_;
  std::set<int> launched_;  // values whose gradients a launch_grad takes

  // Inside Recompute: the outermost segment's kept values. The first pass appends to the list; a
  // replay reads it from kept_next_ on, and nested segments remember where theirs begin.
  std::shared_ptr<KeptList> kept_;
  bool replaying_ = false;
  size_t kept_next_ = 0;
};

// Until the end of the scope at least so much is rebuilt.
class RebuildScope {
 public:
  RebuildScope(Tape& tape, Rebuild least) : tape_(tape), before_(tape.rebuild()) {
    tape.set_rebuild(std::max(before_, least));
  }
  ~RebuildScope() { tape_.set_rebuild(before_); }
  RebuildScope(const RebuildScope&) = delete;

 private:
  Tape& tape_;
  const Rebuild before_;
};

}  // namespace lt2
