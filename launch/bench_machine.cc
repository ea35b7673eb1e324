#include "launch/bench_machine.h"

#include <omp.h>

#include <algorithm>
#include <set>

#include "core/cuda.h"
#include "core/status_macros.h"
#include "core/strings.h"
#include "launch/bench.h"
#include "launch/bench_comm.h"
#include "launch/bench_target.h"
#include "launch/device_peak.h"
#include "launch/memory_plan.h"
#include "launch/timing.h"

namespace lt2 {
namespace {

constexpr double kGuessedLatency = 20e-6;

// FLOPs per byte of [rows, width] times [width, width].
double Intensity(int64_t rows, int64_t width, DType dtype) {
  const auto m = static_cast<double>(rows), n = static_cast<double>(width);
  return 2 * m * n * n / (static_cast<double>(SizeOf(dtype)) * (2 * m * n + n * n));
}

void MeasureRates(Device device, Precision precision, DType dtype, int repeats, Machine* machine) {
  const bool gpu = device.backend == Backend::kCuda;
  const int64_t rows = gpu ? 8192 : 1024;
  RateCurve& flops = machine->products[precision].flops;
  for (int64_t width = 32; width <= rows; width *= 2) {
    flops.at.push_back(Intensity(rows, width, dtype));
    flops.rate.push_back(GemmFlops(device, dtype, rows, width, repeats));
  }
  for (int64_t floats = 1 << 14; floats <= (gpu ? 1 << 28 : 1 << 26); floats *= 8) {
    machine->copy.at.push_back(static_cast<double>(floats * (gpu ? 6 : 8)));
    machine->copy.rate.push_back(CopyBytes(device, floats, repeats));
  }
  constexpr int kTiny = 8;
  machine->call_s = 2.0 * kTiny * kTiny * kTiny / GemmFlops(device, dtype, kTiny, kTiny, 20);
}

// What a case's kernels would take at the machine's rates, by pass, and their operators.
struct Ideal {
  std::set<std::string> operators;
  double forward = 0, backward = 0;
};
Ideal IdealOf(BenchTarget& target, const Machine& machine, Precision precision) {
  Stream meta{.device = {Backend::kMeta}};
  target.Prepare(meta);
  CostLog log;
  log.set_phase(0);
  target.Run(/*backward=*/true, [&] { log.set_phase(1); });
  Ideal ideal;
  for (const CostLog::Call& call : log.calls()) {
    ideal.operators.emplace(Machine::OperatorOf(call));
    (call.phase == 0 ? ideal.forward : ideal.backward) += machine.SecondsOf(call, precision);
  }
  return ideal;
}

// Operators of a case that has several share its figure, where they have no case of their own.
absl::Status MeasureShares(Device device, Precision precision, DType dtype, int repeats,
                           Machine* machine) {
  std::map<std::string, Machine::Share, std::less<>> alone, together;
  for (const std::string& name : BenchTargetNames()) {
    if (name.starts_with("mixer.")) continue;
    ASSIGN_OR_RETURN(const std::unique_ptr<BenchTarget> target,
                     MakeBenchTarget(name, device, dtype));
    const Ideal ideal = IdealOf(*target, *machine, precision);
    Stream stream{.device = device};
    const auto [forward, backward] = TimePasses(*target, stream, repeats);
    Machine::Share share;
    if (ideal.forward > 0) share.forward = ideal.forward / forward;
    if (ideal.backward > 0) share.backward = ideal.backward / backward;
    auto& shares = ideal.operators.size() == 1 ? alone : together;
    for (const std::string& op : ideal.operators) shares.emplace(op, share);
  }
  alone.merge(together);
  machine->shares = std::move(alone);
  return absl::OkStatus();
}

Machine::Link MeasureLink(Communicator& world, Device device, DType dtype, int repeats) {
  constexpr int64_t kSmall = 1 << 10, kLarge = 1 << 24;
  Machine::Link link;
  for (const CommTiming& t : BenchComm(world, device, dtype, kSmall, kSmall, repeats)) {
    link.latency_s = std::max(link.latency_s, t.seconds);
  }
  for (const CommTiming& t : BenchComm(world, device, dtype, kLarge, kLarge, repeats)) {
    link.bandwidth = link.bandwidth == 0 ? t.bus_rate : std::min(link.bandwidth, t.bus_rate);
  }
  return link;
}

}  // namespace

absl::StatusOr<Machine> MeasureMachine(Device device, Precision precision, Communicator& world,
                                       int repeats) {
  const bool gpu = device.backend == Backend::kCuda;
  const DType dtype = precision == Precision::kBf16   ? DType::kBF16
                      : precision == Precision::kFp64 ? DType::kF64
                                                      : DType::kF32;
  const int together = world.local_size();
  Machine machine{.name = gpu ? cuda::Describe(device.index) : StrCat(world.host(), " CPU"),
                  .memory = static_cast<double>(MemoryBudget(device, 1)),
                  .ranks_per_node = together,
                  .shared = !gpu};
  world.Barrier();
  MeasureRates(device, precision, dtype, repeats, &machine);
  machine.products[precision].peak = PeakFlops(device, dtype).value_or(0);
  RETURN_IF_ERROR(MeasureShares(device, precision, dtype, repeats, &machine));
  const bool one_node = together == world.size();
  if (world.size() > 1) {
    machine.node = machine.network = MeasureLink(world, device, dtype, repeats);
  } else {
    machine.ranks_per_node = gpu ? cuda::DeviceCount() : omp_get_num_procs();
    machine.node =
        machine.network = {.bandwidth = machine.copy.rate.back() / 4, .latency_s = kGuessedLatency};
  }
  if (machine.shared) {
    // What one would do alone, of what each did beside the others.
    for (double& rate : machine.copy.rate) rate *= together;
    for (double& rate : machine.products[precision].flops.rate) rate *= together;
  }
  machine.source = StrCat("measured by ", world.size(), world.size() == 1 ? " rank" : " ranks",
                          world.size() == 1 ? "; links are guessed"
                          : one_node        ? "; links within a node, guessed alike between nodes"
                                            : "; links between nodes, guessed alike within");
  return machine;
}

}  // namespace lt2
