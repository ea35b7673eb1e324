#include "parallel/layout.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <utility>

namespace lt2 {
namespace {

constexpr int64_t kAlign = 16;

int64_t Aligned(int64_t elements) { return (elements + kAlign - 1) / kAlign * kAlign; }

int64_t LeadingExtent(const Shape& shape) { return shape.rank() == 0 ? 1 : shape[0]; }

Box RowsOfBox(Box box, int64_t first, int64_t last) {
  if (box.extent.rank() == 0) return box;
  box.begin[0] += first;
  box.extent[0] = last - first;
  return box;
}

// Ranks along tp that hold the same part.
int CopiesOf(const ParamSpec& spec, int tp) {
  CHECK_EQ(tp % spec.split.parts, 0)
      << spec.name << ": " << spec.split.parts << " parts among tp = " << tp;
  return static_cast<int>(tp / spec.split.parts);
}

// In a bucket's buffer, of the rank that holds most: what buckets are closed by, so that it is the
// same on every rank.
int64_t MostElements(const ParamSpec& spec, int tp) {
  return Aligned(HeldBox(spec, tp, tp - 1).size());
}

int64_t BucketElements(std::span<const ParamSpec> specs, int tp, const LayoutOptions& options) {
  if (options.bucket_elements > 0) return options.bucket_elements;
  int64_t total = 0;
  for (const ParamSpec& spec : specs) total += MostElements(spec, tp);
  return std::clamp<int64_t>(total / 8, 1 << 16, 1 << 22);
}

// A place between rows, or between parameters.
struct Cut {
  int64_t offset = 0;  // in the bucket
  size_t param = 0;    // in the bucket's list: the parameter the cut lies in, or before
  int64_t row = 0;     // of what is held of that parameter, below its leading extent
};

using Cuts = std::vector<Cut>;  // where the holders' shards end

// Cuts one bucket among its holders: the first of every `sharing`, with those that hold copies.
class Cutter {
 public:
  Cutter(LayoutTable& table, Bucket& bucket, int holders, int sharing, bool whole_parameters)
      : table_(table),
        bucket_(bucket),
        owners_(holders / sharing),
        sharing_(sharing),
        whole_parameters_(whole_parameters) {}

  // Notes each holder's rows with the parameters.
  void Run() {
    Cut from;
    const Cuts cuts = Choose();
    for (int owner = 0; owner < owners_; ++owner) {
      Give(from, cuts[owner]);
      from = cuts[owner];
      if ((owner + 1) % bucket_.copies > 0) continue;
      for (int none = (sharing_ - 1) * bucket_.copies; none > 0; --none) Give(from, from);
    }
  }

 private:
  // To the next holder.
  void Give(const Cut& from, const Cut& to) {
    const int rank = static_cast<int>(bucket_.shard_counts.size());
    bucket_.shard_counts.push_back(to.offset - from.offset);
    for (size_t i = from.param; i < bucket_.params.size() && i <= to.param; ++i) {
      const Box& held = HeldAt(i);
      const int64_t rows = LeadingExtent(held.extent);
      const int64_t first = i == from.param ? from.row : 0;
      const int64_t last = i == to.param ? to.row : rows;
      if (first >= last) continue;
      table_.entries[bucket_.params[i]].owners.push_back(
          {rank, RowsOfBox(held, first, last), held.size() / rows * first});
    }
  }

  const Box& HeldAt(size_t i) const { return table_.entries[bucket_.params[i]].held; }

  // Equal shards if at most a 64th of padding makes them so.
  Cuts Choose() {
    const int64_t least = Aligned((bucket_.elements + owners_ - 1) / owners_);
    for (int64_t shard = least; shard * owners_ <= bucket_.elements + bucket_.elements / 64;
         shard += kAlign) {
      Cuts cuts = At([shard](int rank) { return shard * (rank + 1); });
      const bool even = std::ranges::all_of(cuts, [&, end = int64_t{0}](const Cut& cut) mutable {
        return cut.offset == (end += shard);
      });
      if (!even) continue;
      bucket_.elements = shard * owners_;
      return cuts;
    }
    return At([&](int rank) { return bucket_.elements * (rank + 1) / owners_; });
  }

  Cuts At(const std::function<int64_t(int rank)>& ideal) const {
    Cuts cuts;
    for (int rank = 0; rank < owners_; ++rank) cuts.push_back(Nearest(ideal(rank)));
    return cuts;
  }

  Cut Nearest(int64_t ideal) const {
    int64_t begin = 0;
    for (size_t i = 0; i < bucket_.params.size(); ++i) {
      const Shape& shape = HeldAt(i).extent;
      const int64_t end = begin + Aligned(shape.size());
      if (ideal >= end) {
        begin = end;
        continue;
      }
      const int64_t rows = whole_parameters_ ? 1 : LeadingExtent(shape);
      const int64_t per_row = shape.size() / rows;
      const int64_t row = std::min(rows, (ideal - begin + per_row / 2) / per_row);
      if (row < rows) return {begin + row * per_row, i, row};
      return {end, i + 1, 0};
    }
    return {ideal, bucket_.params.size(), 0};
  }

  LayoutTable& table_;
  Bucket& bucket_;
  const int owners_, sharing_;
  const bool whole_parameters_;
};

// Buckets fire one after the other: each when the last of its parameters does.
void SortByCompletion(LayoutTable& table) {
  std::ranges::sort(table.buckets, [](const Bucket& a, const Bucket& b) {
    return a.params.back() > b.params.back();
  });
  for (size_t b = 0; b < table.buckets.size(); ++b) {
    for (int p : table.buckets[b].params) table.entries[p].bucket = static_cast<int>(b);
  }
}

}  // namespace

Box HeldBox(const ParamSpec& spec, int tp, int tp_rank) {
  Box box = Box::Whole(spec.shape);
  const auto [dim, parts, whole_gradient] = spec.split;
  if (parts == 1) return box;
  CHECK_LT(dim, spec.shape.rank()) << spec.name;
  CHECK_LE(parts, spec.shape[dim]) << spec.name;
  const int64_t part = tp_rank / CopiesOf(spec, tp);
  box.begin[dim] = PartBegin(spec.shape[dim], parts, part);
  box.extent[dim] = PartBegin(spec.shape[dim], parts, part + 1) - box.begin[dim];
  return box;
}

LayoutTable Layout(std::span<const ParamSpec> specs, const Mesh& mesh, int zero,
                   const LayoutOptions& options, int tp_rank) {
  CHECK(0 <= zero && zero <= 2) << "zero = " << zero;
  LayoutTable table{.zero = zero};
  table.entries.resize(specs.size());
  const int64_t limit = BucketElements(specs, mesh.tp, options);
  struct Open {
    int bucket = 0;
    int64_t most = 0;
  };
  // By copies, whether their gradients are whole, and whether every stage has them.
  std::map<std::tuple<int, bool, bool>, Open> open;
  for (int p = static_cast<int>(specs.size()) - 1; p >= 0; --p) {
    const ParamSpec& spec = specs[p];
    CHECK_GT(spec.shape.size(), 0) << spec.name;
    const int copies = CopiesOf(spec, mesh.tp);
    const bool whole = copies > 1 && spec.split.whole_gradient;
    const bool across = spec.across_stages;
    const auto [at, is_new] = open.try_emplace({copies, whole, across});
    Open& last = at->second;
    // The limit is a stage's own: what all of them hold goes into one bucket.
    if (is_new || (last.most >= limit && !across)) {
      last = {.bucket = static_cast<int>(table.buckets.size())};
      table.buckets.push_back({.copies = whole ? 1 : copies,
                               .across_stages = across,
                               .counted = !whole || tp_rank % copies == 0});
    }
    Bucket& bucket = table.buckets[last.bucket];
    table.entries[p] = {
        .param = p, .offset = bucket.elements, .held = HeldBox(spec, mesh.tp, tp_rank)};
    bucket.params.push_back(p);
    bucket.elements += Aligned(table.entries[p].held.size());
    last.most += MostElements(spec, mesh.tp);
  }
  SortByCompletion(table);
  for (Bucket& bucket : table.buckets) {
    const int holders = mesh.replicas() * bucket.copies * (bucket.across_stages ? mesh.pp : 1);
    const int sharing = options.first_of_row ? mesh.cp : 1;
    Cutter(table, bucket, holders, sharing, options.whole_parameters).Run();
  }
  return table;
}

}  // namespace lt2
