#include "parallel/reducer.h"

#include "core/strings.h"

namespace lt2 {

Reducer::Reducer(std::span<Param* const> params, const LayoutTable& layout,
                 const RankGroups& groups)
    : params_(params.begin(), params.end()), layout_(layout), groups_(groups) {
  CHECK_EQ(params_.size(), layout.entries.size());
  for (const Bucket& bucket : layout.buckets) {
    CHECK_EQ(HoldersOf(bucket, groups).size(), static_cast<int>(bucket.shard_counts.size()));
    const Tensor& like = params_[bucket.params[0]]->master;
    buckets_.push_back({Tensor::Zeros({bucket.elements}, like.dtype(), like.device())});
  }
  for (size_t p = 0; p < params_.size(); ++p) {
    const LayoutEntry& entry = layout.entries[p];
    const Tensor& buffer = buckets_[entry.bucket].gradient;
    CHECK_EQ(buffer.dtype(), params_[p]->master.dtype()) << params_[p]->spec.name;
    params_[p]->BindGradient(buffer.Flat(entry.offset, params_[p]->master.size()));
    params_[p]->on_ready = [this, bucket = entry.bucket](Param& param) { Ready(param, bucket); };
  }
}

Reducer::~Reducer() {
  for (BucketState& bucket : buckets_) bucket.pending.Wait();
  for (Param* param : params_) param->on_ready = nullptr;
}

void Reducer::BeginStep(std::span<const int> uses) {
  CHECK_EQ(uses.size(), params_.size());
  CHECK(!in_step_) << "BeginStep before the Finish of the step before";
  in_step_ = true;
  fired_ = 0;
  for (BucketState& bucket : buckets_) bucket.outstanding = 0;
  for (size_t p = 0; p < params_.size(); ++p) {
    params_[p]->ExpectUses(uses[p]);
    if (uses[p] > 0) ++buckets_[layout_.entries[p].bucket].outstanding;
  }
}

void Reducer::Ready(const Param& param, int bucket) {
  CHECK(in_step_) << param.spec.name << " has a gradient outside a step";
  CHECK_GT(buckets_[bucket].outstanding, 0) << param.spec.name;
  --buckets_[bucket].outstanding;
  FireReadyBuckets();
}

void Reducer::FireReadyBuckets() {
  constexpr const char* kLabel = "reduce_gradients";
  while (fired_ < buckets_.size() && buckets_[fired_].outstanding == 0) {
    BucketState& bucket = buckets_[fired_];
    Communicator& holders = HoldersOf(layout_.buckets[fired_], groups_);
    const std::vector<int64_t>& counts = layout_.buckets[fired_].shard_counts;
    bucket.pending =
        layout_.zero == 0
            ? holders.AllReduceAsync(bucket.gradient, Reduction::kSum, kLabel)
            : holders.ReduceScatterAsync(bucket.gradient, counts, Reduction::kSum, kLabel);
    ++fired_;
  }
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
  CHECK_EQ(fired_, buckets_.size()) << "buckets reduced";
  for (BucketState& bucket : buckets_) bucket.pending.Wait();
  in_step_ = false;
}

}  // namespace lt2
