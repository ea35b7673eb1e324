// Timings of collectives over a range of sizes: what moves gradients and weights between ranks.
#pragma once

#include <string>
#include <vector>

#include "core/device.h"
#include "core/dtype.h"
#include "parallel/communicator.h"

namespace lt2 {

struct CommTiming {
  std::string collective;  // all_reduce, reduce_scatter, all_gather
  int64_t bytes = 0;       // of the whole tensor
  double seconds = 0;      // median
  // Bytes of the tensor per second, and what that asks of each link: for n ranks 2 (n - 1) / n of
  // it for an all-reduce, (n - 1) / n for the others (as NVIDIA's nccl-tests count).
  double algorithm_rate = 0, bus_rate = 0;
};

// Sizes from least_bytes, four times as large each, to most_bytes. Collective over two ranks or
// more.
std::vector<CommTiming> BenchComm(Communicator& world, Device device, DType dtype,
                                  int64_t least_bytes, int64_t most_bytes, int repeats);

}  // namespace lt2
