// lt2 bench: measures operators, whole steps, collectives and checkpoints.
#include <algorithm>
#include <iostream>

#include "absl/strings/str_format.h"
#include "core/file.h"
#include "core/status_macros.h"
#include "core/strings.h"
#include "launch/bench.h"
#include "launch/bench_ckpt.h"
#include "launch/bench_comm.h"
#include "launch/bench_machine.h"
#include "launch/threads.h"
#include "parallel/mpi_communicator.h"
#include "tools/device.h"
#include "tools/flags.h"

namespace lt2 {
namespace {

struct BenchFlags {
  std::vector<std::string> ops;
  ConfigFlags config;
  std::string dtype = "fp32", device = "auto", out = "none";
  int repeats = 20, steps = 20;
  int64_t least_mib = 1, most_mib = 256, ckpt_mib = 512;
  std::string folder = ".";
};

std::string FloorColumns(const OpTiming::Pass& pass) {
  const double seconds = std::max(pass.seconds, 1e-12);
  return absl::StrFormat("%9.4f %8.3f %8.1f %4.0f %%", 1e3 * pass.floor_s,
                         pass.flops / seconds / 1e12, pass.bytes / seconds / 1e9,
                         100 * pass.share());
}

nlohmann::json ToJson(const OpTiming::Pass& pass) {
  return {{"seconds", pass.seconds},
          {"flops", pass.flops},
          {"bytes", pass.bytes},
          {"floor_s", pass.floor_s},
          {"share", pass.share()}};
}

absl::Status RunBenchOp(const BenchFlags& flags, VerbOutput& output) {
  if (LaunchRank() != 0) return absl::OkStatus();  // of one process
  ASSIGN_OR_RETURN(const Device device, ChooseDevice(flags.device));
  UseThreadsFor(*MakeGroupOfOne("world"));
  ASSIGN_OR_RETURN(const DType dtype, ChooseDType(flags.dtype, device));
  ASSIGN_OR_RETURN(const std::vector<OpTiming> timings,
                   BenchOps(flags.ops, device, dtype, flags.repeats));
  output.result = nlohmann::json::array();
  size_t op_width = 8, size_width = 4;
  for (const OpTiming& t : timings) {
    op_width = std::max(op_width, t.op.size());
    size_width = std::max(size_width, t.name.size());
  }
  if (!output.json) {
    std::cout << absl::StrFormat("%-*s %-*s %10s %9s %8s %8s %6s %11s %9s %8s %8s %6s\n", op_width,
                                 "operator", size_width, "size", "forward ms", "floor", "TFLOP/s",
                                 "GB/s", "share", "backward ms", "floor", "TFLOP/s", "GB/s",
                                 "share");
  }
  for (const OpTiming& t : timings) {
    if (!output.json) {
      std::cout << absl::StrFormat("%-*s %-*s %10.4f %s %11.4f %s\n", op_width, t.op, size_width,
                                   t.name, 1e3 * t.forward.seconds, FloorColumns(t.forward),
                                   1e3 * t.backward.seconds, FloorColumns(t.backward));
    }
    output.result.push_back({{"op", t.op},
                             {"name", t.name},
                             {"forward", ToJson(t.forward)},
                             {"backward", ToJson(t.backward)}});
  }
  output.result = {{"ops", output.result}};
  return absl::OkStatus();
}

absl::Status RunBenchStep(const BenchFlags& flags, VerbOutput& output) {
  ASSIGN_OR_RETURN(const RunConfig config, flags.config.LoadOnAllRanks(output));
  ASSIGN_OR_RETURN(const Device device, ChooseDevice(flags.device, &output.world));
  Communicator* const world = output.world.get();
  RETURN_IF_ERROR(SameOnAllRanks(StrCat(config.ToToml(), "\n", flags.steps), *world));
  ASSIGN_OR_RETURN(const StepTiming t, BenchStep(config, device, flags.steps, *world));
  if (!output.json && world->rank() == 0) {
    std::cout << absl::StrFormat(
                     "%.2f M parameters, %d tokens a step, %d ranks: %.1f ms, %.0f tokens/s, "
                     "%.4f model TFLOP/s%s (%.0f %% of the measured GEMM rate), peak %.1f MiB "
                     "(planned %.1f)",
                     static_cast<double>(t.parameters) / 1e6, config.batch.tokens, world->size(),
                     1e3 * t.step_s, t.tokens_per_s, t.model_tflops,
                     t.mfu ? absl::StrFormat(", MFU %.1f %%", 100 * *t.mfu) : "",
                     100 * t.gemm_share, static_cast<double>(t.peak_bytes) / (1 << 20),
                     static_cast<double>(t.planned_bytes) / (1 << 20))
              << std::endl;
  }
  output.result = {{"tokens_per_s", t.tokens_per_s},
                   {"step_s", t.step_s},
                   {"model_tflops", t.model_tflops},
                   {"gemm_share", t.gemm_share},
                   {"mfu", t.mfu ? nlohmann::json(*t.mfu) : nlohmann::json(nullptr)},
                   {"params", t.parameters},
                   {"peak_bytes", t.peak_bytes},
                   {"planned_bytes", t.planned_bytes},
                   {"growths", t.growths},
                   {"loss_first", t.loss_first},
                   {"loss_last", t.loss_last}};
  return absl::OkStatus();
}

absl::Status RunBenchComm(const BenchFlags& flags, VerbOutput& output) {
  if (flags.least_mib > flags.most_mib) {
    return absl::InvalidArgumentError(
        StrCat("--least-mib ", flags.least_mib, " is above --most-mib ", flags.most_mib));
  }
  ASSIGN_OR_RETURN(output.world, StartWorld());
  if (output.world->size() == 1) {
    return absl::InvalidArgumentError(
        "bench comm: one rank moves nothing; start several (mpirun -n 2, srun -n 2)");
  }
  ASSIGN_OR_RETURN(const Device device, ChooseDevice(flags.device, &output.world));
  ASSIGN_OR_RETURN(const DType dtype, ChooseDType(flags.dtype, device));
  Communicator& world = *output.world;
  UseThreadsFor(world);
  const std::vector<CommTiming> timings =
      BenchComm(world, device, dtype, flags.least_mib << 20, flags.most_mib << 20, flags.repeats);
  const bool speaks = !output.json && world.rank() == 0;
  if (speaks) {
    std::cout << absl::StrFormat("%d ranks, %s on %s\n%-16s %10s %12s %14s %9s\n", world.size(),
                                 flags.dtype, Name(device.backend), "collective", "MiB", "ms",
                                 "algorithm GB/s", "bus GB/s");
  }
  nlohmann::json rows = nlohmann::json::array();
  for (const CommTiming& t : timings) {
    if (speaks) {
      std::cout << absl::StrFormat("%-16s %10.1f %12.4f %14.2f %9.2f\n", t.collective,
                                   static_cast<double>(t.bytes) / (1 << 20), 1e3 * t.seconds,
                                   t.algorithm_rate / 1e9, t.bus_rate / 1e9);
    }
    rows.push_back({{"collective", t.collective},
                    {"bytes", t.bytes},
                    {"seconds", t.seconds},
                    {"algorithm_bytes_per_s", t.algorithm_rate},
                    {"bus_bytes_per_s", t.bus_rate}});
  }
  output.result = {{"ranks", world.size()}, {"device", Name(device.backend)}, {"comm", rows}};
  return absl::OkStatus();
}

absl::Status RunBenchCheckpoint(const BenchFlags& flags, VerbOutput& output) {
  ASSIGN_OR_RETURN(output.world, StartWorld());
  ASSIGN_OR_RETURN(const Device device, ChooseDevice(flags.device, &output.world));
  Communicator& world = *output.world;
  UseThreadsFor(world);
  ASSIGN_OR_RETURN(const CheckpointTiming t, BenchCheckpoint(flags.folder, flags.ckpt_mib << 20,
                                                             device, flags.repeats, world));
  output.result = {{"ranks", world.size()},
                   {"bytes", t.bytes},
                   {"stall_s", t.stall_s},
                   {"save_s", t.save_s},
                   {"save_bytes_per_s", t.save_rate()},
                   {"disk_bytes_per_s", t.disk_rate()},
                   {"load_s", t.load_s},
                   {"load_bytes_per_s", t.load_rate()}};
  if (output.json || world.rank() > 0) return absl::OkStatus();
  std::cout << absl::StrFormat(
      "%d ranks, %.1f MiB in all\nstall   %8.1f ms\nsave    %8.3f s  %8.1f MB/s, %.0f %% of the "
      "disk's %.1f MB/s (plain files, synced)\nload    %8.3f s  %8.1f MB/s\n",
      world.size(), static_cast<double>(t.bytes) / (1 << 20), 1e3 * t.stall_s, t.save_s,
      t.save_rate() / 1e6, 100 * t.save_rate() / t.disk_rate(), t.disk_rate() / 1e6, t.load_s,
      t.load_rate() / 1e6);
  return absl::OkStatus();
}

absl::Status RunBenchMachine(const BenchFlags& flags, VerbOutput& output) {
  ASSIGN_OR_RETURN(output.world, StartWorld());
  ASSIGN_OR_RETURN(const Device device, ChooseDevice(flags.device, &output.world));
  ASSIGN_OR_RETURN(const DType dtype, ChooseDType(flags.dtype, device));
  const Precision precision = dtype == DType::kBF16  ? Precision::kBf16
                              : dtype == DType::kF64 ? Precision::kFp64
                                                     : Precision::kFp32;
  Communicator& world = *output.world;
  UseThreadsFor(world);
  ASSIGN_OR_RETURN(const Machine machine, MeasureMachine(device, precision, world, flags.repeats));
  if (world.rank() != 0) return absl::OkStatus();
  if (flags.out != "none") {
    RETURN_IF_ERROR(FileSystem::Get().WriteFile(flags.out, machine.ToToml()));
  }
  output.result = {{"name", machine.name},
                   {"source", machine.source},
                   {"gemm_flops", machine.products.at(precision).flops.rate.back()},
                   {"copy_bytes_per_s", machine.copy.rate.back()},
                   {"node_bytes_per_s", machine.node.bandwidth},
                   {"node_latency_s", machine.node.latency_s},
                   {"file", flags.out}};
  if (!output.json) std::cout << machine.ToToml();
  return absl::OkStatus();
}

}  // namespace

Verb BenchVerb() {
  return {
      .name = "bench",
      .summary =
          "Measures operators, training steps, collectives, checkpoints and the machine: medians "
          "of repeated runs.",
      .example = "{lt2} bench step lt2-tiny --steps 5",
      .add = [](CLI::App& app) -> VerbBody {
        auto flags = std::make_shared<BenchFlags>();
        const auto repeats = [&](CLI::App& verb) {
          verb.add_option("--repeats", flags->repeats, "runs after warm-up")
              ->check(WholeNumber(1, 1000000));
        };
        const auto dtype = [&](CLI::App& verb) {
          verb.add_option("--dtype", flags->dtype, "fp32, fp64 (CPU) or bf16 (GPU)")
              ->check(CLI::IsMember({"fp32", "fp64", "bf16"}));
        };
        CLI::App* op = AddSubverb(app, "op",
                                  "Times operators, and whole mixers (mixer.gdn), beside the "
                                  "machine's limits (above 100 %: from the caches).",
                                  "{lt2} bench op gated_delta_rule --repeats 3");
        op->add_option("ops", flags->ops, "operators or mixer.KIND; none: all");
        repeats(*op);
        dtype(*op);
        AddDeviceFlag(*op, &flags->device);
        CLI::App* step = AddSubverb(app, "step", "Times whole optimizer steps on random tokens.",
                                    "{lt2} bench step lt2-tiny --steps 5");
        AddConfigFlags(*step, &flags->config);
        step->add_option("--steps", flags->steps, "timed ones")->check(WholeNumber(1, 1000000));
        AddDeviceFlag(*step, &flags->device);
        CLI::App* comm =
            AddSubverb(app, "comm", "Times collectives between ranks: GPUs by NCCL, CPUs by MPI.",
                       "mpirun -n 2 {lt2} bench comm --most-mib 16");
        comm->add_option("--least-mib", flags->least_mib, "size of the smallest tensor")
            ->check(WholeNumber(1, 1 << 14));
        comm->add_option("--most-mib", flags->most_mib, "of the largest")
            ->check(WholeNumber(1, 1 << 14));
        repeats(*comm);
        dtype(*comm);
        AddDeviceFlag(*comm, &flags->device);
        CLI::App* ckpt = AddSubverb(
            app, "ckpt", "Times saving and loading a checkpoint beside what the disk does.",
            "{lt2} bench ckpt --mib 64 --repeats 3");
        ckpt->add_option("--mib", flags->ckpt_mib, "what every rank saves")
            ->check(WholeNumber(1, 1 << 20));
        ckpt->add_option("--dir", flags->folder, "where; a folder of its own is made and removed");
        repeats(*ckpt);
        AddDeviceFlag(*ckpt, &flags->device);
        CLI::App* machine =
            AddSubverb(app, "machine",
                       "Measures this machine for `lt2 plan --gpu FILE`: products, copies, every "
                       "operator, and with several ranks the links between them. Prints the file.",
                       "{lt2} bench machine --repeats 1");
        machine->add_option("--out", flags->out, "file that it is written to")->check(NewFile());
        repeats(*machine);
        dtype(*machine);
        AddDeviceFlag(*machine, &flags->device);
        return [flags, op, comm, machine, ckpt](VerbOutput& output) {
          return op->parsed()        ? RunBenchOp(*flags, output)
                 : comm->parsed()    ? RunBenchComm(*flags, output)
                 : machine->parsed() ? RunBenchMachine(*flags, output)
                 : ckpt->parsed()    ? RunBenchCheckpoint(*flags, output)
                                     : RunBenchStep(*flags, output);
        };
      },
      .parallel = true};
}

}  // namespace lt2
