#include "tools/versions.h"

#include <cblas.h>
#include <dlfcn.h>
#include <mpi.h>

#include "absl/strings/str_format.h"
#include "core/file.h"
#include "core/hdf5.h"
#include "core/strings.h"
#include "core/version.h"

namespace lt2 {
namespace {

// MPI answers this before MPI_Init.
std::string MpiVersion() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(text, &length);
  const std::string whole(text, length);
  return whole.substr(0, whole.find(','));
}

std::string BlasVersion() {
  const char* threading[] = {"one thread", "pthreads", "OpenMP"};
  const int kind = openblas_get_parallel();
  std::string config = openblas_get_config();
  config = config.substr(0, config.find(' ', config.find(' ') + 1));
  return StrCat(config, ", ", kind >= 0 && kind <= 2 ? threading[kind] : "?", ", core ",
                openblas_get_corename());
}

// Looks a function up in a library that may not be there; the library stays loaded.
template <class Function>
Function* Find(const char* library, const char* name) {
  void* handle = dlopen(library, RTLD_LAZY | RTLD_LOCAL);
  return handle ? reinterpret_cast<Function*>(dlsym(handle, name)) : nullptr;
}

std::string CudaText() {
  const std::string toolkit = CudaVersion();
  std::string text = toolkit == "none" ? "none" : StrCat("toolkit ", toolkit);
  if (auto* get = Find<int(int*)>("libcuda.so.1", "cuDriverGetVersion")) {
    int version = 0;
    if (get(&version) == 0) {
      StrAppend(&text, ", driver for ", version / 1000, ".", version % 1000 / 10);
    }
  }
  return text;
}

std::string NcclText() {
  int version = 0;
  auto* get = Find<int(int*)>("libnccl.so.2", "ncclGetVersion");
  if (!get || get(&version) != 0) return "none";
  return StrCat(version / 10000, ".", version % 10000 / 100, ".", version % 100);
}

}  // namespace

std::vector<std::pair<std::string, std::string>> Versions() {
  return {{"commit", GitCommit()}, {"build", BuildType()},  {"compiler", CompilerVersion()},
          {"mpi", MpiVersion()},   {"hdf5", h5::Version()}, {"openblas", BlasVersion()},
          {"cuda", CudaText()},    {"nccl", NcclText()}};
}

std::string VersionText() {
  std::string text = "lt2 " LT2_VERSION "\n";
  for (const auto& [name, version] : Versions()) {
    text += absl::StrFormat("%-9s %s\n", name, version);
  }
  return text;
}

GpuState FindGpus() {
  GpuState state;
  state.driver = FileSystem::Get().Exists("/proc/driver/nvidia/version");
  auto* init = Find<int(unsigned)>("libcuda.so.1", "cuInit");
  auto* count = Find<int(int*)>("libcuda.so.1", "cuDeviceGetCount");
  state.library = init != nullptr;
  if (init && count && init(0) == 0) count(&state.devices);
  return state;
}

}  // namespace lt2
