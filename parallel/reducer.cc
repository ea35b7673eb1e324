#include "parallel/reducer.h"

#include <algorithm>
#include <numeric>

#include "core/strings.h"
#include "kernels/elementwise.h"

namespace lt2 {

Reducer::Reducer(std::span<Param* const> params, const LayoutTable& layout,
                 const RankGroups& groups)
    : params_(params.begin(), params.end()),
      layout_(layout),
      groups_(groups),
      buckets_(layout.buckets.size()) {
  CHECK_EQ(params_.size(), layout.entries.size());
  for (int b = 0; b < static_cast<int>(buckets_.size()); ++b) {
    const Bucket& bucket = layout.buckets[b];
    const std::vector<int64_t>& counts = bucket.shard_counts;
    const Communicator& holders = HoldersOf(bucket, groups);
    CHECK_EQ(holders.size(), static_cast<int>(counts.size()));
    // Waiting for other stages in the middle of a step would keep them waiting for this one.
    const bool shards = layout.zero == 2 && holders.size() > 1 && !bucket.across_stages;
    for (int p : bucket.params) {
      params_[p]->on_ready = [this](Param& param) { Ready(param); };
      if (shards) params_[p]->on_need = [this, b](Param&) { Need(b); };
    }
    if (!shards) {
      MakeGradient(b);
      continue;
    }
    const Tensor& like = params_[bucket.params[0]]->master;
    buckets_[b].begin =
        std::accumulate(counts.begin(), counts.begin() + holders.rank(), int64_t{0});
    buckets_[b].shard = Tensor::Zeros({counts[holders.rank()]}, like.dtype(), like.device());
  }
}

Reducer::~Reducer() {
  for (BucketState& bucket : buckets_) bucket.pending.Wait();
  for (Param* param : params_) param->on_ready = param->on_need = nullptr;
}

void Reducer::MakeGradient(int bucket) {
  const std::vector<int>& params = layout_.buckets[bucket].params;
  const Tensor& like = params_[params[0]]->master;
  Tensor& buffer = buckets_[bucket].gradient;
  buffer = Tensor::Zeros({layout_.buckets[bucket].elements}, like.dtype(), like.device());
  for (int p : params) {
    CHECK_EQ(buffer.dtype(), params_[p]->master.dtype()) << params_[p]->spec.name;
    params_[p]->BindGradient(buffer.Flat(layout_.entries[p].offset, params_[p]->master.size()));
  }
}

void Reducer::BeginStep(std::span<const int> uses, int micro_batches) {
  CHECK_EQ(uses.size(), params_.size());
  CHECK(!in_step_) << "BeginStep before the Finish of the step before";
  in_step_ = true;
  fired_ = 0;
  rounds_ = layout_.zero == 2 ? micro_batches : 1;
  for (size_t p = 0; p < params_.size(); ++p) {
    params_[p]->ExpectUses(uses[p] * micro_batches / rounds_, rounds_);
  }
}

void Reducer::Need(int bucket) {
  if (bucket == reducing_) Settle();
  if (!buckets_[bucket].gradient.defined()) MakeGradient(bucket);
}

void Reducer::Ready(const Param& param) {
  CHECK(in_step_) << param.spec.name << " has a gradient outside a step";
  FireReadyBuckets();
}

bool Reducer::Complete(int bucket, int round) const {
  return std::ranges::all_of(layout_.buckets[bucket].params,
                             [&](int p) { return params_[p]->rounds_done() > round; });
}

void Reducer::FireReadyBuckets() {
  const int buckets = static_cast<int>(buckets_.size());
  for (; fired_ < buckets * rounds_; ++fired_) {
    if (!Complete(fired_ % buckets, fired_ / buckets)) return;
    Fire(fired_ % buckets, fired_ / buckets);
  }
}

void Reducer::Fire(int bucket, int round) {
  constexpr const char* kLabel = "reduce_gradients";
  const Bucket& cut = layout_.buckets[bucket];
  Communicator& holders = HoldersOf(cut, groups_);
  BucketState& state = buckets_[bucket];
  if (state.shard.defined()) {
    Settle();  // one buffer at a time is in collectives
    Need(bucket);
    reducing_ = bucket;
    first_ = round == 0;
  } else if (round + 1 < rounds_) {
    return;  // a whole gradient, reduced once
  }
  state.pending =
      layout_.zero == 0
          ? holders.AllReduceAsync(state.gradient, Reduction::kSum, kLabel)
          : holders.ReduceScatterAsync(state.gradient, cut.shard_counts, Reduction::kSum, kLabel);
}

void Reducer::Settle() {
  if (reducing_ < 0) return;
  const int reduced = std::exchange(reducing_, -1);
  BucketState& bucket = buckets_[reduced];
  std::exchange(bucket.pending, {}).Wait();
  if (const int64_t owned = bucket.shard.size(); owned > 0) {
    const Tensor sum = bucket.gradient.Flat(bucket.begin, owned);
    Stream stream{.device = sum.device()};
    first_ ? bucket.shard.CopyFrom(sum) : AccumulateInto(stream, bucket.shard, sum);
  }
  for (int p : layout_.buckets[reduced].params) params_[p]->main_grad = {};
  bucket.gradient = {};
}

void Reducer::Finish() {
  CHECK(in_step_) << "Finish without BeginStep";
  std::string missing;
  for (const Param* param : params_) {
    if (param->outstanding() == 0) continue;
    StrAppend(&missing, missing.empty() ? "" : ", ", param->spec.name, " (", param->outstanding(),
              " more uses expected)");
  }
  CHECK(missing.empty()) << "gradients that never arrived: " << missing;
  FireReadyBuckets();  // the last ones, if no parameter in them is used at all
  CHECK_EQ(fired_, static_cast<int>(buckets_.size()) * rounds_) << "buckets reduced";
  Settle();
  for (BucketState& bucket : buckets_) bucket.pending.Wait();
  in_step_ = false;
}

Tensor Reducer::Gradient(int param, const Box& box, int64_t offset) const {
  const LayoutEntry& entry = layout_.entries[param];
  const BucketState& bucket = buckets_[entry.bucket];
  const Tensor& memory = bucket.shard.defined() ? bucket.shard : bucket.gradient;
  return memory.Flat(entry.offset + offset - bucket.begin, box.size()).Reshape(box.extent);
}

int64_t Reducer::bytes() const {
  int64_t bytes = 0;
  for (const BucketState& bucket : buckets_) {
    bytes += bucket.shard.defined() ? bucket.shard.bytes() : bucket.gradient.bytes();
  }
  return bytes;
}

}  // namespace lt2
