// Sums gradients over the ranks that hold a parameter while the backward still runs.
//
// Owns the gradient buffers, one a bucket; Param::main_grad are views of them. The last use of a
// bucket's last parameter fires its reduction: an all-reduce (ZeRO 0), or a reduce-scatter in place
// (ZeRO 1: only what this rank owns is meaningful afterwards). Buckets are fired in their order, so
// that all ranks issue alike.
#pragma once

#include <span>
#include <vector>

#include "parallel/layout.h"

namespace lt2 {

class Reducer {
 public:
  // Binds the gradients of `params` (in the order of the layout) and sets their on_ready. All three
  // must outlive the reducer, which must outlive the use of the gradients.
  Reducer(std::span<Param* const> params, const LayoutTable& layout, const RankGroups& groups);
  ~Reducer();
  Reducer(const Reducer&) = delete;

  // Before a step's first backward: how often each parameter will be used by this rank
  // (micro-batches, times loops inside the looped stack). Zeroes the gradients.
  void BeginStep(std::span<const int> uses);
  void BeginStep(int uses) { BeginStep(std::vector<int>(params_.size(), uses)); }

  // After a step's last backward: waits for the reductions. Fatal, with the names, unless every
  // parameter has arrived as often as told and every bucket was reduced once.
  void Finish();

 private:
  struct BucketState {
    Tensor gradient;
    int outstanding = 0;  // parameters that have not had their last use
    Pending pending;
  };

  void Ready(const Param& param, int bucket);
  void FireReadyBuckets();

  const std::vector<Param*> params_;
  const LayoutTable& layout_;
  const RankGroups& groups_;
  std::vector<BucketState> buckets_;
  size_t fired_ = 0;  // buckets reduced in this step
  bool in_step_ = false;
};

}  // namespace lt2
