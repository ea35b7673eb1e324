// What a backward has of its forward: a value, or how to make it again.
//
// A norm's output, say, is read by the weight gradients of the projections behind it, and follows
// from its input, which the norm's own backward needs anyway. Such a value dies with the forward;
// the first node that asks makes it again, with the same kernel and so the same bits, and the last
// node that may ask takes it along.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "core/tensor.h"

namespace lt2 {

// What a tape lets backward make again, each with what is before it: values that cost little more
// than reading them; matrix products that are wider than what they are made from.
enum class Rebuild : uint8_t { kNothing, kCheap, kProducts };

// A value that all who saved it share.
class Rebuildable {
 public:
  using Make = std::function<Tensor()>;
  // Starts what the Make that it returns waits for.
  using Launch = std::function<Make()>;
  Rebuildable(Make make, const Tensor& made) : make_(std::move(make)), made_(made) {}
  Rebuildable(Launch launch, const Tensor& made) : launch_(std::move(launch)), made_(made) {}

  // Before get(): if it will have to wait, that begins now.
  void Begin() {
    if (launch_ && !made_.Lock().defined()) make_ = std::exchange(launch_, nullptr)();
  }
  // The first value while anyone else holds it, else made again, once.
  Tensor get() {
    if (value_.defined()) return value_;
    if (Tensor made = made_.Lock(); made.defined()) return made;
    Begin();
    value_ = make_();
    make_ = nullptr;  // with what only it had saved
    return value_;
  }

 private:
  Make make_;
  Launch launch_;
  WeakTensor made_;
  Tensor value_;
};

// Made by Tape::Save; what nodes capture instead of a tensor.
class Saved {
 public:
  Saved() = default;  // of an undefined value
  explicit Saved(Tensor value) : value_(std::move(value)) {}
  Saved(std::shared_ptr<Rebuildable> source, const Shape& shape)
      : source_(std::move(source)), shape_(shape) {}

  Tensor get() const { return source_ ? source_->get().Reshape(shape_) : value_; }

 private:
  Tensor value_;
  std::shared_ptr<Rebuildable> source_;
  Shape shape_;
};

}  // namespace lt2
