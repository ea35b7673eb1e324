// Sums gradients over the ranks that hold a parameter while the backward still runs.
//
// Owns the gradients' memory, a buffer a bucket; Param::main_grad are views of them. The last use
// of a bucket's last parameter fires its reduction: an all-reduce (ZeRO 0), or a reduce-scatter in
// place (ZeRO 1: only what this rank owns is meaningful afterwards). With ZeRO 2 that happens in
// every micro-batch: a buffer lives from the first use of it to the end of the reduction, and what
// stays is this rank's part of the sum over micro-batches. Buckets are fired in their order, so
// that all ranks issue alike.
//
// Uses are counted, not told apart: where micro-batches overlap, a reduction takes along what
// others have added by then, and the last one the rest.
#pragma once

#include <span>
#include <vector>

#include "parallel/layout.h"

namespace lt2 {

class Reducer {
 public:
  // Provides the gradients of `params` (in the order of the layout) and sets what they call. All
  // three must outlive the reducer, which must outlive the use of the gradients.
  Reducer(std::span<Param* const> params, const LayoutTable& layout, const RankGroups& groups);
  ~Reducer();
  Reducer(const Reducer&) = delete;

  // Before a step's first backward: how often this rank will use each parameter in a micro-batch
  // (loops count). The gradients begin at zero.
  void BeginStep(std::span<const int> uses, int micro_batches = 1);
  void BeginStep(int uses) { BeginStep(std::vector<int>(params_.size(), uses)); }

  // Waits for what ZeRO 2 has begun: where something recorded ends and the step does not.
  void Settle();
  // After a step's last backward: waits for the reductions. Fatal, with the names, unless every
  // parameter has arrived as often as told and every bucket was reduced once a round.
  void Finish();

  // Rows of what this rank holds of a parameter, from ZeRO 2 on of those it owns, as Finish leaves
  // them: in the same memory in every step.
  Tensor Gradient(int param, const Box& box, int64_t offset) const;
  // Held between steps.
  int64_t bytes() const;

 private:
  struct BucketState {
    Tensor gradient;    // where `shard` is there, for the time said above
    Tensor shard;       // ZeRO 2 among several ranks
    int64_t begin = 0;  // of the shard, in the bucket
    Pending pending;
  };

  bool Complete(int bucket, int round) const;
  void MakeGradient(int bucket);
  void Need(int bucket);
  void Ready(const Param& param);
  void FireReadyBuckets();
  void Fire(int bucket, int round);

  const std::vector<Param*> params_;
  const LayoutTable& layout_;
  const RankGroups& groups_;
  std::vector<BucketState> buckets_;
  bool in_step_ = false;
  int rounds_ = 0;      // of reductions in this step
  int fired_ = 0;       // of buckets times rounds
  int reducing_ = -1;   // the bucket with a shard whose reduction has not been waited for
  bool first_ = false;  // and that is its first one in this step
};

}  // namespace lt2
