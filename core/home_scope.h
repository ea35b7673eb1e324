// Memory of a thread's own, for threads that share a GPU.
#pragma once

#include "core/allocator.h"

namespace lt2 {

// While it lives, the pool is what the thread takes for the common memory of its device: a block
// that one thread has freed, while what it queued still works on it, goes to no other's queue.
class HomeScope {
 public:
  explicit HomeScope(const MemoryPool* pool);
  ~HomeScope();
  HomeScope(const HomeScope&) = delete;
  HomeScope& operator=(const HomeScope&) = delete;

 private:
  const MemoryPool* const outer_;
};

}  // namespace lt2
