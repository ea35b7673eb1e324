// Many tensors in one launch: which chunk of which tensor a block works on.
//
// The table is a kernel's argument (up to 32,764 bytes), so that a recorded launch keeps it.
#pragma once

#include <algorithm>

#include "kernels/cuda/common.cuh"

namespace lt2::cuda {

template <class Entry, int kMost>
struct PiecesTable {
  Entry entries[kMost];
  int first_chunk[kMost + 1];  // of each entry; then the number of chunks
  int count = 0;

  // The entry that a chunk belongs to: the last that begins at or before it.
  __device__ int Find(int chunk) const {
    int low = 0, high = count - 1;
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      if (first_chunk[middle] <= chunk) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    return low;
  }
};

// Calls launch(table, first) for every kMost of `count` pieces; make(i) gives piece i's entry,
// size(i) its elements, which are cut into chunks of `chunk`.
template <class Entry, int kMost, class Make, class Size, class Launch>
void ForEachTable(int64_t count, int64_t chunk, const Make& make, const Size& size,
                  const Launch& launch) {
  for (int64_t first = 0; first < count; first += kMost) {
    PiecesTable<Entry, kMost> table;
    table.count = static_cast<int>(std::min<int64_t>(kMost, count - first));
    table.first_chunk[0] = 0;
    for (int i = 0; i < table.count; ++i) {
      table.entries[i] = make(first + i);
      table.first_chunk[i + 1] =
          table.first_chunk[i] + static_cast<int>((size(first + i) + chunk - 1) / chunk);
    }
    launch(table, first);
  }
}

}  // namespace lt2::cuda
