#include "parallel/nccl.h"

#include <dlfcn.h>

#include <cstdlib>

#include "core/log.h"
#include "core/strings.h"

namespace lt2 {
namespace {

constexpr int kOldest = NCCL_VERSION(2, 18, 1);

absl::StatusOr<Nccl> Load() {
  setenv("NCCL_NVLS_ENABLE", "0", /*overwrite=*/0);
  // The loader's folders come first; then where the library was when this program was built.
  std::string tried;
  void* library = nullptr;
  for (const char* path : {"libnccl.so.2", LT2_NCCL_LIBRARY}) {
    if (library == nullptr) library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) StrAppend(&tried, tried.empty() ? "" : "; ", dlerror());
  }
  if (library == nullptr) {
    return absl::FailedPreconditionError(
        StrCat("several GPUs work together by NCCL, which is not to be found (", tried,
               "); install it, or name its folder in LD_LIBRARY_PATH"));
  }
  Nccl nccl;
  std::string missing;
#define LT2_NCCL_LOOK_UP(Name)                                                     \
  nccl.Name = reinterpret_cast<decltype(nccl.Name)>(dlsym(library, "nccl" #Name)); \
  if (nccl.Name == nullptr) StrAppend(&missing, " nccl" #Name);
  LT2_NCCL_FUNCTIONS(LT2_NCCL_LOOK_UP)
#undef LT2_NCCL_LOOK_UP
  int version = 0;
  if (!missing.empty() || nccl.GetVersion(&version) != ncclSuccess || version < kOldest) {
    return absl::FailedPreconditionError(StrCat("the NCCL found here is too old: version ", version,
                                                ", this program needs ", kOldest, " or newer",
                                                missing.empty() ? "" : "; it lacks", missing));
  }
  LogDebug(StrCat("NCCL ", version / 10000, ".", version % 10000 / 100, ".", version % 100));
  return nccl;
}

}  // namespace

absl::StatusOr<const Nccl*> LoadNccl() {
  static const auto* nccl = new absl::StatusOr<Nccl>(Load());
  if (!nccl->ok()) return nccl->status();
  return &**nccl;
}

}  // namespace lt2
