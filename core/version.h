// What this program was built from and with.
#pragma once

#include <string>

namespace lt2 {

std::string GitCommit();  // short hash, "+" if the tree had changes, "unknown" outside git
std::string CompilerVersion();
std::string BuildType();
std::string CudaVersion();  // toolkit compiled with, "none" without

}  // namespace lt2
