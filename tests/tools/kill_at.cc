// Ends a rank at a chosen moment of its saves, as SIGKILL does at random ones. Preloaded by
// chaos_test.sh with
//   LT2_KILL_AT="RANK CALL NAME COUNT"
// it kills the rank before its COUNT-th CALL (write, fsync or rename) on what has a name that
// begins with NAME.
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

struct Moment {
  char call[16] = "", name[32] = "";
  int count = 0;  // 0: never

  Moment() {
    const char* at = std::getenv("LT2_KILL_AT");
    const char* mine = std::getenv("OMPI_COMM_WORLD_RANK");
    int rank = 0, n = 0;
    if (at == nullptr || mine == nullptr) return;
    if (std::sscanf(at, "%d %15s %31s %d", &rank, call, name, &n) != 4) std::abort();
    if (rank == std::atoi(mine)) count = n;
  }
};

void Before(const char* call, const char* path) {
  static const Moment moment;
  static std::atomic<int> seen{0};
  if (moment.count == 0 || std::strcmp(call, moment.call) != 0) return;
  const char* slash = std::strrchr(path, '/');
  const char* name = slash == nullptr ? path : slash + 1;
  if (std::strncmp(name, moment.name, std::strlen(moment.name)) != 0) return;
  if (++seen == moment.count) kill(getpid(), SIGKILL);
}

void Before(const char* call, int descriptor) {
  char link[32], path[4096] = "";
  std::snprintf(link, sizeof(link), "/proc/self/fd/%d", descriptor);
  if (readlink(link, path, sizeof(path) - 1) > 0) Before(call, path);
}

template <class F>
F* Real(const char* call) {
  return reinterpret_cast<F*>(dlsym(RTLD_NEXT, call));
}

}  // namespace

extern "C" {

ssize_t write(int descriptor, const void* from, size_t bytes) {
  static auto* const real = Real<ssize_t(int, const void*, size_t)>("write");
  Before("write", descriptor);
  return real(descriptor, from, bytes);
}

ssize_t pwrite(int descriptor, const void* from, size_t bytes, off_t offset) {
  static auto* const real = Real<ssize_t(int, const void*, size_t, off_t)>("pwrite");
  Before("write", descriptor);
  return real(descriptor, from, bytes, offset);
}

int fsync(int descriptor) {
  static auto* const real = Real<int(int)>("fsync");
  Before("fsync", descriptor);
  return real(descriptor);
}

int rename(const char* from, const char* to) noexcept {
  static auto* const real = Real<int(const char*, const char*)>("rename");
  Before("rename", from);
  return real(from, to);
}

}  // extern "C"
