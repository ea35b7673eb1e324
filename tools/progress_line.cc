#include "tools/progress_line.h"

#include <unistd.h>

#include <cstdio>

#include "absl/strings/str_format.h"
#include "core/trace.h"
#include "launch/progress.h"

namespace lt2 {

ProgressLine::ProgressLine(std::string what)
    : what_(std::move(what)),
      terminal_(isatty(STDERR_FILENO) == 1),
      begin_(MonotonicSeconds()),
      next_(begin_ + 2) {}

void ProgressLine::Show(double done, double total) {
  const double now = MonotonicSeconds();
  if (now < next_ || done <= 0 || total <= 0) return;
  next_ = now + (terminal_ ? 0.2 : 10);
  shown_ = true;
  const std::string line = absl::StrFormat("%s %.0f %%, ETA %s", what_, 100 * done / total,
                                           Duration((now - begin_) * (total - done) / done));
  std::fprintf(stderr, terminal_ ? "\r\033[K%s" : "%s\n", line.c_str());
  std::fflush(stderr);
}

void ProgressLine::End() {
  if (shown_ && terminal_) std::fputs("\r\033[K", stderr);
}

}  // namespace lt2
