// Timings: medians of repeated runs beside the machine's own limits, measured in the same process.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "launch/bench_target.h"
#include "launch/run_config.h"
#include "parallel/communicator.h"

namespace lt2 {

// What this machine does at best with the threads in use.
struct MachineLimits {
  double gemm_flops =
      0;  // per second, in the run's dtype, on random numbers: 1024³, 8192³ on a GPU
  double copy_bytes = 0;  // per second, read plus written, far beyond the caches
};
MachineLimits MeasureLimits(Device device, DType dtype);
// FLOP/s of [rows, width] times [width, width].
double GemmFlops(Device device, DType dtype, int64_t rows, int64_t width, int repeats);
// Bytes read plus written per second by a copy of so many floats.
double CopyBytes(Device device, int64_t floats, int repeats);

// One operator, or one mixer's whole layer, at a size worth timing.
struct OpTiming {
  // `floor_s`: the larger of FLOPs at gemm_flops and bytes, by the formula, at copy_bytes.
  struct Pass {
    double seconds = 0, flops = 0, bytes = 0, floor_s = 0;
    double share() const { return seconds > 0 ? floor_s / seconds : 0; }
  };
  std::string op, name;
  Pass forward, backward;  // no backward: zeros
};
// On a GPU runs are replayed as a graph, launch gaps left out; backward is then what forward and
// backward take beyond forward. `ops`: names of operators or mixer.KIND; empty: all. NotFound for
// an unknown name. `dtype`: F32, F64 on the CPU, BF16 on a GPU.
absl::StatusOr<std::vector<OpTiming>> BenchOps(const std::vector<std::string>& ops, Device device,
                                               DType dtype, int repeats);

// Medians of forward and of backward. Prepares the target.
std::pair<double, double> TimePasses(BenchTarget& target, Stream& stream, int repeats);

struct StepTiming {
  double step_s = 0;                          // median
  double tokens_per_s = 0, model_tflops = 0;  // of all ranks
  std::optional<double> mfu;                  // none on a device whose peak is not known
  double gemm_share = 0;  // model FLOPs over what the measured GEMM rate would do (one rank)
  int64_t parameters = 0, peak_bytes = 0, planned_bytes = 0;
  int64_t growths = 0;  // requests for memory after the first step: 0
  double loss_first = 0, loss_last = 0;
};
// Whole optimizer steps on random tokens, `steps` timed ones after warm-up. Collective.
absl::StatusOr<StepTiming> BenchStep(const RunConfig& config, Device device, int steps,
                                     Communicator& world);

}  // namespace lt2
