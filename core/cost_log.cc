#include "core/cost_log.h"

#include <utility>

#include "core/allocator.h"

namespace lt2 {

static thread_local CostLog* current_log = nullptr;

CostLog::CostLog() : outer_(std::exchange(current_log, this)) {}
CostLog::~CostLog() { current_log = outer_; }
CostLog* CostLog::Current() { return current_log; }

void CostLog::Add(Call call) {
  call.place = CurrentPlace();
  call.phase = phase_;
  if (const auto meter = MetaMeter::Current()) call.live = meter->memory.live;
  calls_.push_back(std::move(call));
}

void CostLog::AddKernel(double flops, double bytes) { Add({.flops = flops, .bytes = bytes}); }

size_t CostLog::AddCollective(const void* group, const char* label, double bytes) {
  Add({.op = label, .bytes = bytes, .group = group});
  return calls_.size() - 1;
}

void CostLog::AddWait(size_t collective) {
  if (calls_[collective].waited == 0) calls_[collective].waited = calls_.size();
}

void CostLog::Name(const char* op, bool weights) {
  for (; named_ < calls_.size(); ++named_) {
    Call& call = calls_[named_];
    if (call.group == nullptr) call.op = op;
    call.weights = weights;
  }
}

}  // namespace lt2
