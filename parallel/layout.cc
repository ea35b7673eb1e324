#include "parallel/layout.h"

#include <algorithm>
#include <functional>

namespace lt2 {
namespace {

constexpr int64_t kAlign = 16;

int64_t Aligned(int64_t elements) { return (elements + kAlign - 1) / kAlign * kAlign; }

int64_t LeadingExtent(const Shape& shape) { return shape.rank() == 0 ? 1 : shape[0]; }

Box BoxOfRows(const Shape& shape, int64_t first, int64_t last) {
  return shape.rank() == 0 ? Box::Whole(shape) : Box::RowsOf(shape, first, last);
}

int64_t BucketElements(std::span<const ParamSpec> specs, const LayoutOptions& options) {
  if (options.bucket_elements > 0) return options.bucket_elements;
  int64_t total = 0;
  for (const ParamSpec& spec : specs) total += Aligned(spec.shape.size());
  return std::clamp<int64_t>(total / 8, 1 << 16, 1 << 22);
}

// A place between rows, or between parameters.
struct Cut {
  int64_t offset = 0;  // in the bucket
  size_t param = 0;    // in the bucket's list: the parameter the cut lies in, or before
  int64_t row = 0;     // of that parameter, below its leading extent
};

// The one nearest to `ideal`.
Cut NearestCut(const Bucket& bucket, std::span<const ParamSpec> specs, bool whole_parameters,
               int64_t ideal) {
  int64_t begin = 0;
  for (size_t i = 0; i < bucket.params.size(); ++i) {
    const Shape& shape = specs[bucket.params[i]].shape;
    const int64_t end = begin + Aligned(shape.size());
    if (ideal >= end) {
      begin = end;
      continue;
    }
    const int64_t rows = whole_parameters ? 1 : LeadingExtent(shape);
    const int64_t per_row = shape.size() / rows;
    const int64_t row = std::min(rows, (ideal - begin + per_row / 2) / per_row);
    if (row < rows) return {begin + row * per_row, i, row};
    return {end, i + 1, 0};
  }
  return {ideal, bucket.params.size(), 0};
}

using Cuts = std::vector<Cut>;  // where the ranks' shards end

Cuts CutsAt(const Bucket& bucket, std::span<const ParamSpec> specs, bool whole_parameters, int dp,
            const std::function<int64_t(int rank)>& ideal) {
  Cuts cuts;
  for (int rank = 0; rank < dp; ++rank) {
    cuts.push_back(NearestCut(bucket, specs, whole_parameters, ideal(rank)));
  }
  return cuts;
}

// Where the ranks' shards of a bucket end: equal ones if at most a 64th of padding makes them so.
Cuts ChooseCuts(Bucket& bucket, std::span<const ParamSpec> specs, bool whole_parameters, int dp) {
  const int64_t least = Aligned((bucket.elements + dp - 1) / dp);
  for (int64_t shard = least; shard * dp <= bucket.elements + bucket.elements / 64;
       shard += kAlign) {
    Cuts cuts = CutsAt(bucket, specs, whole_parameters, dp,
                       [shard](int rank) { return shard * (rank + 1); });
    const bool even = std::ranges::all_of(cuts, [&, end = int64_t{0}](const Cut& cut) mutable {
      return cut.offset == (end += shard);
    });
    if (!even) continue;
    bucket.elements = shard * dp;
    return cuts;
  }
  return CutsAt(bucket, specs, whole_parameters, dp,
                [&](int rank) { return bucket.elements * (rank + 1) / dp; });
}

// Cuts one bucket among the ranks and notes each rank's rows with the parameters.
void Shard(LayoutTable& table, Bucket& bucket, std::span<const ParamSpec> specs,
           bool whole_parameters) {
  Cut from;
  for (const Cut& to : ChooseCuts(bucket, specs, whole_parameters, table.replicas)) {
    const int rank = static_cast<int>(bucket.shard_counts.size());
    bucket.shard_counts.push_back(to.offset - from.offset);
    for (size_t i = from.param; i < bucket.params.size() && i <= to.param; ++i) {
      const Shape& shape = specs[bucket.params[i]].shape;
      const int64_t rows = LeadingExtent(shape);
      const int64_t first = i == from.param ? from.row : 0;
      const int64_t last = i == to.param ? to.row : rows;
      if (first >= last) continue;
      table.entries[bucket.params[i]].owners.push_back(
          {rank, BoxOfRows(shape, first, last), shape.size() / rows * first});
    }
    from = to;
  }
}

}  // namespace

LayoutTable Layout(std::span<const ParamSpec> specs, const Mesh& mesh, int zero,
                   const LayoutOptions& options) {
  CHECK(mesh.pp == 1 && mesh.tp == 1) << mesh.ToString();
  CHECK(zero == 0 || zero == 1) << "zero = " << zero;
  LayoutTable table{.replicas = mesh.replicas(), .zero = zero};
  table.entries.resize(specs.size());
  const int64_t limit = BucketElements(specs, options);
  for (int p = static_cast<int>(specs.size()) - 1; p >= 0; --p) {
    CHECK_GT(specs[p].shape.size(), 0) << specs[p].name;
    if (table.buckets.empty() || table.buckets.back().elements >= limit)
      table.buckets.emplace_back();
    Bucket& bucket = table.buckets.back();
    table.entries[p] = {.param = p,
                        .bucket = static_cast<int>(table.buckets.size()) - 1,
                        .offset = bucket.elements,
                        .held = Box::Whole(specs[p].shape)};
    bucket.params.push_back(p);
    bucket.elements += Aligned(specs[p].shape.size());
  }
  for (Bucket& bucket : table.buckets) Shard(table, bucket, specs, options.whole_parameters);
  return table;
}

}  // namespace lt2
