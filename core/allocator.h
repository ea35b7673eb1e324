// Memory of a device: a caching best-fit allocator for the host and each GPU, pools set apart from
// it, a counter for kMeta.
//
// After the first step a training step asks the system for nothing: `growths` stays where it is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "core/device.h"

namespace lt2 {

// What a set of allocations holds; bytes as allocated, rounded up to kAlignment.
struct MemoryStats {
  int64_t live = 0;      // handed out now
  int64_t peak = 0;      // most ever live since ResetPeak
  int64_t reserved = 0;  // taken from the system
  int64_t growths = 0;   // times the system was asked
};

// Where an allocator takes its segments from.
class MemorySource {
 public:
  virtual ~MemorySource() = default;
  virtual const char* name() const = 0;         // "host", "GPU"
  virtual void* Take(int64_t bytes) = 0;        // nullptr: there is no more
  virtual void Give(void*, int64_t bytes) = 0;  // back to the system
};
std::unique_ptr<MemorySource> HostMemory();

// Blocks are split and merged inside large segments; safe from any thread. On a GPU a freed block
// may be handed out while work that used it is still queued: everything that touches it must be
// ordered on the thread's stream (core/cuda.h).
class CachingAllocator {
 public:
  static constexpr int64_t kAlignment = 256;  // what GPU kernels and cuBLAS like best
  static int64_t Rounded(int64_t bytes);

  // The process's allocator of a device; never destroyed, so that tensors may outlive main.
  static CachingAllocator& Of(Device device);

  // What is handed out is counted in `common` too, if there is one.
  explicit CachingAllocator(std::unique_ptr<MemorySource> source,
                            CachingAllocator* common = nullptr)
      : source_(std::move(source)), common_(common) {}
  ~CachingAllocator();
  void* Allocate(int64_t bytes);
  void Free(void* pointer);
  // The same for a pool's segments, which are in use as far as the pool counts them to be.
  void* SetAside(int64_t bytes);
  void TakeBack(void* pointer);
  void Count(int64_t bytes);
  // Takes one segment of at least `bytes` now, so that what the plan predicts never grows later.
  void Reserve(int64_t bytes);
  // Gives segments that hold nothing back to the system.
  void Trim();
  MemoryStats stats() const;
  void ResetPeak();
  // Asked when the system has no more: what the memory holds and what would need less, for the
  // message that ends the process. An empty one takes it back.
  void SetAdvice(std::function<std::string()> advice);

 private:
  struct Block {
    int64_t bytes;
    bool free;
    bool first;  // begins a segment: not merged with what lies before it
  };
  using BlockMap = std::map<std::byte*, Block>;
  BlockMap::iterator Take(int64_t bytes);
  int64_t Give(void* pointer);  // its bytes
  void CountHere(int64_t bytes);
  void AddSegment(int64_t bytes);
  [[noreturn]] void DieOutOfMemory(int64_t bytes);
  void InsertFree(BlockMap::iterator block);
  void EraseFree(BlockMap::iterator block);

  const std::unique_ptr<MemorySource> source_;
  CachingAllocator* const common_;
  mutable std::mutex mutex_;
  BlockMap blocks_;                                // every block, by address
  std::set<std::pair<int64_t, std::byte*>> free_;  // free ones, by size then address
  std::map<std::byte*, int64_t> segments_;
  MemoryStats stats_;
  std::function<std::string()> advice_;
};

// Memory of a device set apart. What a thread allocates inside a PoolScope comes from it, and
// nothing else does: a step that was recorded finds its tensors where they were, whatever has been
// allocated since. Tensors may outlive the pool.
class MemoryPool {
 public:
  explicit MemoryPool(Device device);
  // Takes at least `bytes` from the device's common memory now.
  void Reserve(int64_t bytes) { allocator_->Reserve(bytes); }
  MemoryStats stats() const { return allocator_->stats(); }

 private:
  friend class PoolScope;
  const Device device_;
  const std::shared_ptr<CachingAllocator> allocator_;
};

// While it lives, the thread's tensors on the pool's device come from the pool; with nullptr from
// the common memory again, for what outlives the work of an outer scope.
class PoolScope {
 public:
  explicit PoolScope(const MemoryPool* pool);
  ~PoolScope();
  PoolScope(const PoolScope&) = delete;
  PoolScope& operator=(const PoolScope&) = delete;

  // What a tensor made now on this device is allocated from: nullptr is CachingAllocator::Of.
  static std::shared_ptr<CachingAllocator> Current(Device device);

 private:
  const MemoryPool* const outer_;
};

// Counts what a dry run on kMeta would hold and compute. One is current per thread at a time.
class MetaMeter {
 public:
  // Makes this meter the thread's current one until it is destroyed.
  MetaMeter();
  ~MetaMeter();
  MetaMeter(const MetaMeter&) = delete;
  MetaMeter& operator=(const MetaMeter&) = delete;

  const MemoryStats& memory() const { return counters_->memory; }
  double flops() const { return counters_->flops; }
  double bytes_moved() const { return counters_->bytes_moved; }

  // What Tensor and kernels report to; nullptr where the thread has no meter.
  struct Counters {
    MemoryStats memory;
    double flops = 0, bytes_moved = 0;
    void Add(int64_t bytes);
    void Remove(int64_t bytes);
  };
  static std::shared_ptr<Counters> Current();

 private:
  std::shared_ptr<Counters> counters_;
  std::shared_ptr<Counters> outer_;
};

}  // namespace lt2
