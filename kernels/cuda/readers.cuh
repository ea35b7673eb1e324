// Lists turned round: which queries name a row. Always in the same order.
#pragma once

#include <algorithm>

#include "kernels/cuda/common.cuh"
#include "kernels/gpu_limits.h"

namespace lt2::cuda {

// Entry e of query t's list is entry t · length + e. Entries [offsets[b], offsets[b + 1]) of
// `entries` name bucket b, queries ascending.
struct ReaderLists {
  int32_t *offsets, *entries;  // [buckets + 1], [queries · length]
};

// How many runs of queries are counted, each for itself: workspace of that many · buckets.
inline int64_t ReaderRuns(int64_t queries, int64_t buckets) {
  constexpr int64_t kMostCounts = int64_t{1} << 24;
  return std::clamp<int64_t>(std::min(queries, kMostCounts / std::max<int64_t>(buckets, 1)), 1,
                             128);
}

// counts [runs, buckets] += 1 for each entry; `each` queries a run.
template <class BucketOf>
__global__ void __launch_bounds__(256)
    CountReaders(int64_t size, int64_t length, int64_t buckets, int64_t each, BucketOf bucket_of,
                 int32_t* counts) {
  const int64_t entry = int64_t{blockIdx.x} * 256 + threadIdx.x;
  if (entry >= size) return;
  const int64_t query = entry / length, bucket = bucket_of(query, entry % length);
  if (bucket >= 0) atomicAdd(counts + query / each * buckets + bucket, 1);
}

// Counts become where a run begins in its bucket; offsets[b] the number of bucket b's entries.
template <class = void>
__global__ void __launch_bounds__(256)
    StartRuns(int64_t runs, int64_t buckets, int32_t* counts, int32_t* offsets) {
  const int64_t bucket = int64_t{blockIdx.x} * 256 + threadIdx.x;
  if (bucket >= buckets) return;
  int32_t before = 0;
  for (int64_t run = 0; run < runs; ++run) {
    int32_t& count = counts[run * buckets + bucket];
    const int32_t here = count;
    count = before;
    before += here;
  }
  offsets[bucket] = before;
}

// offsets [n + 1]: numbers become the sums of those before. One block of 1024 threads.
template <class = void>
__global__ void __launch_bounds__(1024) StartBuckets(int64_t n, int32_t* offsets) {
  __shared__ int32_t of_thread[1024];
  const int64_t each = (n + 1023) / 1024, begin = min(n, threadIdx.x * each);
  const int64_t end = min(n, begin + each);
  int32_t sum = 0;
  for (int64_t b = begin; b < end; ++b) sum += offsets[b];
  of_thread[threadIdx.x] = sum;
  for (int step = 1; step < 1024; step *= 2) {
    __syncthreads();
    const int32_t other = threadIdx.x >= step ? of_thread[threadIdx.x - step] : 0;
    __syncthreads();
    of_thread[threadIdx.x] += other;
  }
  int32_t before = of_thread[threadIdx.x] - sum;
  for (int64_t b = begin; b < end; ++b) {
    const int32_t here = offsets[b];
    offsets[b] = before;
    before += here;
  }
  if (threadIdx.x == 1023) offsets[n] = before;
}

// A block takes a run, query by query: a list names a bucket once at most.
template <class BucketOf>
__global__ void __launch_bounds__(256)
    FillReaders(int64_t queries, int64_t length, int64_t buckets, int64_t each, BucketOf bucket_of,
                int32_t* counts, ReaderLists lists) {
  int32_t* next = counts + blockIdx.x * buckets;
  const int64_t end = min(queries, (blockIdx.x + 1) * each);
  for (int64_t query = blockIdx.x * each; query < end; ++query) {
    for (int64_t e = threadIdx.x; e < length; e += 256) {
      const int64_t bucket = bucket_of(query, e);
      if (bucket < 0) continue;
      lists.entries[lists.offsets[bucket] + next[bucket]++] =
          static_cast<int32_t>(query * length + e);
    }
    __syncthreads();
  }
}

// bucket_of(query, e) is called on the device: -1 where there is no entry. counts [ReaderRuns,
// buckets] is workspace.
template <class BucketOf>
void SortReaders(const Stream& stream, const char* name, int64_t queries, int64_t length,
                 int64_t buckets, const BucketOf& bucket_of, int32_t* counts,
                 const ReaderLists& lists) {
  const int64_t runs = ReaderRuns(queries, buckets), size = queries * length;
  const int64_t each = (queries + runs - 1) / runs;
  CHECK_LE(size, gpu::kMostListEntries) << name << ": entries of lists";
  LT2_CUDA_CHECK(cudaMemsetAsync(counts, 0, runs * buckets * sizeof(int32_t), Handle(stream)));
  CountReaders<<<Blocks(size, 256), 256, 0, Handle(stream)>>>(size, length, buckets, each,
                                                              bucket_of, counts);
  CheckLaunch(name);
  StartRuns<>
      <<<Blocks(buckets, 256), 256, 0, Handle(stream)>>>(runs, buckets, counts, lists.offsets);
  CheckLaunch(name);
  StartBuckets<><<<1, 1024, 0, Handle(stream)>>>(buckets, lists.offsets);
  CheckLaunch(name);
  FillReaders<<<runs, 256, 0, Handle(stream)>>>(queries, length, buckets, each, bucket_of, counts,
                                                lists);
  CheckLaunch(name);
}

}  // namespace lt2::cuda
