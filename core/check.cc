#include "core/check.h"

#include <cstdio>
#include <cstdlib>

#include "core/log.h"

namespace lt2 {

CheckFailure::CheckFailure(const char* file, int line, const char* what) {
  message_ << file << ":" << line << ": check failed: " << what << " ";
}

CheckFailure::~CheckFailure() {
  std::fprintf(stderr, "lt2: %s%s\n", RankPrefix().c_str(), message_.str().c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace lt2
