// Progress with ETA on standard error for work over two seconds: in place on a terminal, in a file
// at most one line every ten seconds.
#pragma once

#include <string>

namespace lt2 {

class ProgressLine {
 public:
  explicit ProgressLine(std::string what);
  // Cheap; prints only when it is time to.
  void Show(double done, double total);
  // Ends the line on a terminal.
  void End();

 private:
  std::string what_;
  bool terminal_;
  double begin_, next_;
  bool shown_ = false;
};

}  // namespace lt2
