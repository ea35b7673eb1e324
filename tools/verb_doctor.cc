// lt2 doctor: what this machine can and cannot run, and what to install.
#include <cblas.h>
#include <sched.h>
#include <unistd.h>

#include <cmath>
#include <iostream>
#include <memory>
#include <vector>

#include "absl/strings/str_format.h"
#include "core/cuda.h"
#include "core/philox.h"
#include "core/strings.h"
#include "core/version.h"
#include "launch/presets.h"
#include "parallel/nccl_communicator.h"
#include "tools/verb.h"
#include "tools/versions.h"

namespace lt2 {
namespace {

void Multiply(int m, int n, int k, const float* a, const float* b, float* c, bool transpose_b) {
  cblas_sgemm(CblasRowMajor, CblasNoTrans, transpose_b ? CblasTrans : CblasNoTrans, m, n, k, 1, a,
              k, b, transpose_b ? k : n, 0, c, n);
}
void Multiply(int m, int n, int k, const double* a, const double* b, double* c, bool transpose_b) {
  cblas_dgemm(CblasRowMajor, CblasNoTrans, transpose_b ? CblasTrans : CblasNoTrans, m, n, k, 1, a,
              k, b, transpose_b ? k : n, 0, c, n);
}

// ‖c − ab‖ / ‖ab‖ against three loops in double, the worst over awkward sizes. OpenBLAS has shipped
// kernels that are wrong on processors newer than itself.
template <class T>
double WorstGemmError() {
  double worst = 0;
  const int sizes[][3] = {{1, 1, 1},     {3, 5, 7},      {17, 33, 65},
                          {67, 129, 31}, {128, 96, 200}, {255, 257, 97}};
  for (const auto& [m, n, k] : sizes) {
    std::vector<T> a(m * k), b(k * n), c(m * n);
    for (size_t i = 0; i < a.size(); ++i) a[i] = static_cast<T>(OpenUniform(Philox(1, i)[0]) - 0.5);
    for (size_t i = 0; i < b.size(); ++i) b[i] = static_cast<T>(OpenUniform(Philox(2, i)[0]) - 0.5);
    for (bool transpose_b : {false, true}) {
      Multiply(m, n, k, a.data(), b.data(), c.data(), transpose_b);
      double error = 0, norm = 0;
      for (int i = 0; i < m; ++i) {
        for (int j = 0; j < n; ++j) {
          double sum = 0;
          for (int l = 0; l < k; ++l) {
            sum += static_cast<double>(a[i * k + l]) * (transpose_b ? b[j * k + l] : b[l * n + j]);
          }
          error += (c[i * n + j] - sum) * (c[i * n + j] - sum);
          norm += sum * sum;
        }
      }
      const double relative = std::sqrt(error / norm);
      if (!(relative <= worst)) worst = relative;  // NaN counts
    }
  }
  return worst;
}

int AffinityCount() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 0;
}

double GiB(int name) {
  return static_cast<double>(sysconf(name)) * static_cast<double>(sysconf(_SC_PAGESIZE)) /
         (1 << 30);
}

// Prints one line a finding and remembers whether all is well.
class Report {
 public:
  explicit Report(VerbOutput& output) : output_(output) {}
  void Line(const std::string& name, const std::string& text) {
    output_.result[name] = text;
    if (!output_.json) std::cout << absl::StrFormat("%-10s %s\n", name, text);
  }
  void Advice(const std::string& text) {
    output_.result["advice"].push_back(text);
    if (!output_.json) std::cout << absl::StrFormat("%-10s %s\n", "->", text);
  }

 private:
  VerbOutput& output_;
};

bool CheckBlas(Report& report) {
  const double error_f32 = WorstGemmError<float>(), error_f64 = WorstGemmError<double>();
  const bool right = error_f32 < 1e-5 && error_f64 < 1e-13;
  report.Line("gemm", absl::StrFormat("%s (relative error float32 %.1e, float64 %.1e)",
                                      right ? "right" : "WRONG", error_f32, error_f64));
  if (!right) {
    report.Advice(
        "OpenBLAS computes wrong products on this processor: export "
        "OPENBLAS_CORETYPE=SKYLAKEX (or HASWELL without AVX-512), then run lt2 doctor "
        "again");
  }
  if (openblas_get_parallel() != OPENBLAS_OPENMP) {
    report.Advice(
        "this OpenBLAS is not the OpenMP build, so its threads compete with ours: install "
        "libopenblas-openmp-dev and build again");
  }
  return right;
}

// What the verdict says of GPUs.
std::string CheckGpu(Report& report) {
  const GpuState gpu = FindGpus();
  if (gpu.devices > 0) {
    report.Line("gpu", StrCat(gpu.devices, gpu.devices == 1 ? " device" : " devices"));
  } else if (gpu.driver || gpu.library) {
    report.Line("gpu", "driver found, but no usable device");
    report.Advice(
        "run nvidia-smi: the driver and its library may be of different versions, or the "
        "job was given no GPU");
  } else {
    report.Line("gpu", "none (no NVIDIA driver)");
  }
  const bool usable = cuda::DeviceCount() > 0;
  report.Line("cuda", !cuda::Built()
                          ? "not compiled in: nvcc was not found when this program was built"
                          : StrCat("compiled in, ", CudaVersion(),
                                   usable ? "; first GPU: " + cuda::Describe(0) : ""));
  if (!usable) return "this machine trains on its CPU; several ranks by mpirun";
  if (cuda::DeviceCount() == 1) return "this machine trains on its GPU, or on its CPU";
  const absl::Status nccl = NcclStatus();
  report.Line("nccl", nccl.ok() ? "found" : std::string(nccl.message()));
  return nccl.ok() ? "this machine trains on its GPUs, one rank each by mpirun, or on its CPU"
                   : "this machine trains on one GPU (on several with NCCL), or on its CPU";
}

absl::Status RunDoctor(VerbOutput& output) {
  Report report(output);
  for (const auto& [name, version] : Versions()) {
    if (name != "cuda" && name != "nccl") report.Line(name, version);
  }
  const int usable = AffinityCount();
  report.Line("cores", StrCat(usable, " usable of ", sysconf(_SC_NPROCESSORS_ONLN)));
  if (usable < sysconf(_SC_NPROCESSORS_ONLN)) {
    report.Advice(
        "this process may not use every core: under mpirun, --bind-to none or a map with "
        "cores per rank gives each rank its threads room");
  }
  report.Line("memory", absl::StrFormat("%.1f GiB, %.1f GiB free", GiB(_SC_PHYS_PAGES),
                                        GiB(_SC_AVPHYS_PAGES)));
  const bool right = CheckBlas(report);
  const std::string devices = CheckGpu(report);
  report.Line("presets", PresetDirectory().value_or("not found"));
  report.Line("verdict", right ? devices : "do not train here before the advice above is followed");
  return right ? absl::OkStatus()
               : absl::InternalError("matrix products are wrong on this machine");
}

}  // namespace

Verb DoctorVerb() {
  return {.name = "doctor",
          .summary = "Says what this machine can and cannot run, and what to install.",
          .example = "{lt2} doctor",
          .add = [](CLI::App&) -> VerbBody { return RunDoctor; }};
}

}  // namespace lt2
