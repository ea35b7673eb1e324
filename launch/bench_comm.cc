#include "launch/bench_comm.h"

#include <algorithm>

#include "core/cuda.h"
#include "core/trace.h"

namespace lt2 {
namespace {

// Collectives in a row that are timed together: as many as a step has in flight.
constexpr int kInARow = 4;

template <class Start>
double SecondsEach(Communicator& world, Device device, int repeats, const Start& start) {
  std::vector<double> seconds;
  for (int run = 0; run <= repeats; ++run) {
    WaitFor({.device = device});
    world.Barrier();
    const double begun = MonotonicSeconds();
    std::vector<Pending> pending;
    for (int i = 0; i < kInARow; ++i) pending.push_back(start());
    for (const Pending& each : pending) each.Wait();
    WaitFor({.device = device});
    if (run > 0) seconds.push_back((MonotonicSeconds() - begun) / kInARow);  // the first warms up
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

}  // namespace

std::vector<CommTiming> BenchComm(Communicator& world, Device device, DType dtype,
                                  int64_t least_bytes, int64_t most_bytes, int repeats) {
  const int ranks = world.size();
  CHECK_GE(ranks, 2);
  const double share = (ranks - 1.0) / ranks;
  std::vector<CommTiming> timings;
  for (int64_t bytes = least_bytes; bytes <= most_bytes; bytes *= 4) {
    const int64_t each = std::max<int64_t>(1, bytes / SizeOf(dtype) / ranks);
    const std::vector<int64_t> counts(ranks, each);
    const Tensor x = Tensor::Zeros({each * ranks}, dtype, device);
    const auto time = [&](const char* name, double factor, const auto& start) {
      const double seconds = SecondsEach(world, device, repeats, start);
      const double rate = static_cast<double>(x.bytes()) / seconds;
      timings.push_back({name, x.bytes(), seconds, rate, rate * factor});
    };
    time("all_reduce", 2 * share, [&] { return world.AllReduceAsync(x, Reduction::kSum); });
    time("reduce_scatter", share,
         [&] { return world.ReduceScatterAsync(x, counts, Reduction::kSum); });
    time("all_gather", share, [&] { return world.AllGatherAsync(x, counts); });
  }
  return timings;
}

}  // namespace lt2
