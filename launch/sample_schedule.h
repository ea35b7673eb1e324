// Which samples a data-parallel rank reads in which micro-batch: a pure function of counters.
//
// A step reads the next samples_per_step samples of the run, whatever the mesh; they are dealt out
// to micro-batches and, within one, to ranks in order.
#pragma once

#include <cstdint>
#include <vector>

namespace lt2 {

struct SampleSchedule {
  int64_t first_sample = 0;      // of the run, where this process begins
  int64_t samples_per_step = 1;  // over all ranks: micro_batches · dp · micro_batch
  int64_t micro_batches = 1;     // of a rank in a step
  int64_t micro_batch = 1;       // samples of a rank at a time
  int64_t dp = 1, rank = 0;

  // Appends the samples of micro-batch `job`, counted from the first one of this process.
  void operator()(int64_t job, std::vector<int64_t>* samples) const {
    const int64_t step = job / micro_batches, turn = job % micro_batches;
    const int64_t begin = first_sample + step * samples_per_step + (turn * dp + rank) * micro_batch;
    for (int64_t r = 0; r < micro_batch; ++r) samples->push_back(begin + r);
  }
};

}  // namespace lt2
