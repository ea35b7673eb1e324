// What a dry run on kMeta does, call by call: for whoever knows what a machine takes for each.
#pragma once

#include <cstdint>
#include <vector>

#include "core/place.h"

namespace lt2 {

class CostLog {
 public:
  struct Call {
    // Of a kernel the tape's name of its operator, "" outside of tapes; of a collective its label.
    const char* op = "";
    double flops = 0;
    double bytes = 0;             // read and written; of a collective: what this rank sends
    const void* group = nullptr;  // of a collective: its Communicator
    Place place;
    bool weights = false;  // gradients of parameters that nothing waits for
    int phase = 0;
    int64_t live = 0;   // bytes of tensors held
    size_t waited = 0;  // a collective is under way until calls()[waited]; 0: nobody waited for it
  };

  // Makes this log the thread's current one until it is destroyed.
  CostLog();
  ~CostLog();
  CostLog(const CostLog&) = delete;
  static CostLog* Current();  // nullptr where the thread has none

  void AddKernel(double flops, double bytes);
  // Returns its place among the calls.
  size_t AddCollective(const void* group, const char* label, double bytes);
  void AddWait(size_t collective);
  // Gives the kernels since the last name theirs.
  void Name(const char* op, bool weights = false);
  // Of calls from here on; what it means is the reader's.
  void set_phase(int phase) { phase_ = phase; }

  const std::vector<Call>& calls() const { return calls_; }

 private:
  void Add(Call call);

  CostLog* const outer_;
  std::vector<Call> calls_;
  size_t named_ = 0;
  int phase_ = 0;
};

}  // namespace lt2
