// A named logical tensor, the part of it held here, and a countdown of its uses.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "core/box.h"
#include "core/tensor.h"

namespace lt2 {

// How a parameter is filled before training; a pure function of (seed, name, element index).
struct Init {
  enum class Kind : uint8_t {
    kZeros,
    kOnes,
    kTruncatedNormal,            // a = standard deviation, cut at 3 standard deviations
    kUniform,                    // in [a, b)
    kLogUniform,                 // log of U(a, b): A_log
    kInverseSoftplusLogUniform,  // softplus^-1 of exp(U(ln a, ln b)): dt_bias
    kLinear,                     // a + b times the element's index
  };
  Kind kind = Kind::kZeros;
  double a = 0, b = 0;
  bool operator==(const Init&) const = default;
};

// How the ranks of a tensor-parallel group divide a parameter: `dim` is cut into `parts` parts, and
// part p is held by the p-th of as many equal runs of neighbouring ranks.
struct ParamSplit {
  int dim = 0;
  int64_t parts = 1;  // 1: every rank holds all of it; else at most dim's extent
  // Of ranks that hold the same part each computes the whole gradient of it, not a summand.
  bool whole_gradient = false;
  bool operator==(const ParamSplit&) const = default;
};
inline ParamSplit SplitRows(int64_t parts) { return {.dim = 0, .parts = parts}; }
inline ParamSplit SplitColumns(int64_t parts) { return {.dim = 1, .parts = parts}; }
// Where part `part` of `parts` of an extent begins.
inline int64_t PartBegin(int64_t extent, int64_t parts, int64_t part) {
  return extent * part / parts;
}

// What is known of a parameter without holding it. Initialisation, gradient sums, norms, ZeRO
// shards and checkpoints are computed from a table of these; none knows a layer by name.
struct ParamSpec {
  std::string name;  // logical: "layers.0.mixer.q_proj.weight"
  Shape shape;       // the whole logical tensor; matrices are [out, in]
  Init init;
  bool decay = true;  // weight decay applies
  // No matrix product reads it: kept in float32 in a bfloat16 run.
  bool elementwise = false;
  ParamSplit split = {};
  // Of layers in several pipeline stages: every stage holds it, and its gradient is the sum of
  // theirs.
  bool across_stages = false;
};

class Param {
 public:
  // Without memory: BindValue gives it some (a view of a bucket, say).
  explicit Param(ParamSpec spec);
  // With memory of its own.
  Param(ParamSpec spec, DType dtype, Device device);
  Param(const Param&) = delete;
  Param& operator=(const Param&) = delete;

  const ParamSpec spec;
  Box held;          // of spec.shape, what is here: all of it unless Hold says otherwise
  Tensor value;      // what kernels read; of held's extents, as the two below
  Tensor master;     // what is trained and saved: float32 where value is bfloat16, else value
  Tensor main_grad;  // sum over uses; kernels always add to it. Undefined until BindGradient

  void Hold(const Box& box);       // before any of the three below
  void BindValue(Tensor value);    // the master too, unless it is bfloat16
  void BindMaster(Tensor master);  // the value too, unless that is bfloat16
  void BindGradient(Tensor gradient);

  // The schedule's word for the coming step: how many rounds, and uses in each; micro-batches ×
  // loops in all. Zeroes main_grad.
  void ExpectUses(int uses, int rounds = 1);
  // Something is about to be added to main_grad (told by the tape, or by an operator that adds in
  // forward).
  void Need() {
    if (on_need) on_need(*this);
  }
  // One use's weight gradient is complete (told by the tape, never by a kernel). A round's last one
  // calls on_ready; one more than expected is a failure.
  void Arrive();
  int outstanding() const { return uses_ * rounds_ - arrived_; }
  int rounds_done() const { return uses_ == 0 ? rounds_ : arrived_ / uses_; }

  std::function<void(Param&)> on_need, on_ready;  // set by the gradient reducer

 private:
  int uses_ = 0, rounds_ = 0, arrived_ = 0;
};

}  // namespace lt2
