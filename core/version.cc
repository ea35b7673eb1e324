#include "core/version.h"

#include "core/commit.h"  // generated: LT2_COMMIT
#include "core/strings.h"

namespace lt2 {

std::string GitCommit() { return LT2_COMMIT; }

std::string CompilerVersion() {
#ifdef __clang__
  return StrCat("clang ", __clang_version__);
#else
  return StrCat("g++ ", __VERSION__);
#endif
}

std::string BuildType() { return LT2_BUILD_TYPE; }

std::string CudaVersion() { return LT2_CUDA_VERSION; }

}  // namespace lt2
