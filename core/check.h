// Checks for programmer errors: always on, the values are printed, the process ends.
//
//   CHECK(rank < size) << "mesh " << name;
//   CHECK_EQ(x.dtype(), w.dtype());
//
// What a user, a file or the network can get wrong is an absl::Status instead.
#pragma once

#include <sstream>

namespace lt2 {

// Collects the message and aborts when it goes out of scope.
class CheckFailure {
 public:
  CheckFailure(const char* file, int line, const char* what);
  [[noreturn]] ~CheckFailure();
  std::ostream& stream() { return message_; }

 private:
  std::ostringstream message_;
};

// Gives both branches of the macro the type void.
struct CheckVoidify {
  void operator&(std::ostream&) {}
};

}  // namespace lt2

#define CHECK(condition) \
  (condition)            \
      ? void(0)          \
      : ::lt2::CheckVoidify() & ::lt2::CheckFailure(__FILE__, __LINE__, #condition).stream()

#define LT2_CHECK_OP(a, op, b)                                                         \
  ((a)op(b)) ? void(0)                                                                 \
             : ::lt2::CheckVoidify() &                                                 \
                   ::lt2::CheckFailure(__FILE__, __LINE__, #a " " #op " " #b).stream() \
                       << "(" << (a) << " vs " << (b) << ") "
#define CHECK_EQ(a, b) LT2_CHECK_OP(a, ==, b)
#define CHECK_LT(a, b) LT2_CHECK_OP(a, <, b)
#define CHECK_LE(a, b) LT2_CHECK_OP(a, <=, b)
#define CHECK_GT(a, b) LT2_CHECK_OP(a, >, b)
#define CHECK_GE(a, b) LT2_CHECK_OP(a, >=, b)
