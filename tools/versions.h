// What this program was built from and runs with.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace lt2 {

// (name, version) of the commit, compiler, MPI, HDF5, OpenBLAS, CUDA and NCCL; "none" where absent.
std::vector<std::pair<std::string, std::string>> Versions();
std::string VersionText();

struct GpuState {
  bool driver = false;   // the kernel driver is loaded
  bool library = false;  // libcuda.so.1 can be loaded
  int devices = 0;
};
GpuState FindGpus();

}  // namespace lt2
