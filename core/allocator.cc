#include "core/allocator.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstdlib>

#include "core/check.h"
#include "core/cuda.h"
#include "core/home_scope.h"

namespace lt2 {
namespace {

constexpr int kMostDevices = 16;
constexpr int64_t kSegment = int64_t{4} << 20;  // smallest piece asked of the system

thread_local std::shared_ptr<MetaMeter::Counters> current_meter;
thread_local const MemoryPool *current_pool = nullptr, *home_pool = nullptr;

class HostMemorySource : public MemorySource {
 public:
  const char* name() const override { return "host"; }
  void* Take(int64_t bytes) override {
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return nullptr;
    madvise(memory, bytes, MADV_HUGEPAGE);
    return memory;
  }
  void Give(void* memory, int64_t bytes) override { munmap(memory, bytes); }
};

// A pool's segments are blocks of what it is set apart from.
class CommonMemorySource : public MemorySource {
 public:
  explicit CommonMemorySource(CachingAllocator& common) : common_(common) {}
  const char* name() const override { return "pool"; }
  void* Take(int64_t bytes) override { return common_.SetAside(bytes); }
  void Give(void* memory, int64_t) override { common_.TakeBack(memory); }

 private:
  CachingAllocator& common_;
};

}  // namespace

std::unique_ptr<MemorySource> HostMemory() { return std::make_unique<HostMemorySource>(); }

int64_t CachingAllocator::Rounded(int64_t bytes) {
  return std::max<int64_t>(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
}

CachingAllocator& CachingAllocator::Of(Device device) {
  CHECK(device.backend != Backend::kMeta) << "a dry run has no memory";
  if (device.backend == Backend::kCuda) {
    static std::array<CachingAllocator*, kMostDevices> gpus = [] {
      std::array<CachingAllocator*, kMostDevices> all{};
      for (int i = 0; i < cuda::DeviceCount(); ++i) {
        all[i] = new CachingAllocator(cuda::DeviceMemory(i));
      }
      return all;
    }();
    CHECK(device.index < kMostDevices && gpus[device.index] != nullptr)
        << "there is no GPU " << static_cast<int>(device.index);
    return *gpus[device.index];
  }
  static auto* host = new CachingAllocator(HostMemory());
  return *host;
}

CachingAllocator::~CachingAllocator() {
  for (auto [address, bytes] : segments_) source_->Give(address, bytes);
}

void CachingAllocator::InsertFree(BlockMap::iterator block) {
  block->second.free = true;
  free_.emplace(block->second.bytes, block->first);
}

void CachingAllocator::EraseFree(BlockMap::iterator block) {
  block->second.free = false;
  free_.erase({block->second.bytes, block->first});
}

void CachingAllocator::DieOutOfMemory(int64_t bytes) {
  // Whoever is asked may allocate.
  const std::function<std::string()> advice = std::move(advice_);
  const MemoryStats stats = stats_;
  mutex_.unlock();
  CHECK(false) << "out of " << source_->name() << " memory: " << bytes << " bytes more than the "
               << stats.reserved << " held (" << stats.live << " in use); "
               << (advice ? advice()
                          : "lower batch.micro_batch or set parallel.recompute = \"block\"");
  std::abort();
}

void CachingAllocator::AddSegment(int64_t bytes) {
  void* memory = source_->Take(bytes);
  if (memory == nullptr) DieOutOfMemory(bytes);
  auto* address = static_cast<std::byte*>(memory);
  segments_[address] = bytes;
  stats_.reserved += bytes;
  ++stats_.growths;
  InsertFree(blocks_.emplace(address, Block{bytes, true, true}).first);
}

void CachingAllocator::Reserve(int64_t bytes) {
  std::lock_guard lock(mutex_);
  AddSegment((bytes + kSegment - 1) / kSegment * kSegment);
}

CachingAllocator::BlockMap::iterator CachingAllocator::Take(int64_t bytes) {
  const int64_t wanted = Rounded(bytes);
  auto fit = free_.lower_bound({wanted, nullptr});
  if (fit == free_.end()) {
    AddSegment((wanted + kSegment - 1) / kSegment * kSegment);
    fit = free_.lower_bound({wanted, nullptr});
  }
  auto block = blocks_.find(fit->second);
  EraseFree(block);
  if (block->second.bytes > wanted) {
    const Block rest{block->second.bytes - wanted, true, false};
    block->second.bytes = wanted;
    InsertFree(blocks_.emplace(block->first + wanted, rest).first);
  }
  return block;
}

int64_t CachingAllocator::Give(void* pointer) {
  auto block = blocks_.find(static_cast<std::byte*>(pointer));
  CHECK(block != blocks_.end() && !block->second.free) << "freed twice or never allocated";
  const int64_t bytes = block->second.bytes;
  auto next = std::next(block);
  if (next != blocks_.end() && next->second.free && !next->second.first) {
    EraseFree(next);
    block->second.bytes += next->second.bytes;
    blocks_.erase(next);
  }
  if (!block->second.first && block != blocks_.begin()) {
    auto before = std::prev(block);
    if (before->second.free) {
      EraseFree(before);
      before->second.bytes += block->second.bytes;
      blocks_.erase(block);
      block = before;
    }
  }
  InsertFree(block);
  return bytes;
}

void CachingAllocator::CountHere(int64_t bytes) {
  stats_.live += bytes;
  stats_.peak = std::max(stats_.peak, stats_.live);
  if (common_ != nullptr) common_->Count(bytes);
}

void* CachingAllocator::Allocate(int64_t bytes) {
  std::lock_guard lock(mutex_);
  const auto block = Take(bytes);
  CountHere(block->second.bytes);
  return block->first;
}

void CachingAllocator::Free(void* pointer) {
  std::lock_guard lock(mutex_);
  CountHere(-Give(pointer));
}

void* CachingAllocator::SetAside(int64_t bytes) {
  std::lock_guard lock(mutex_);
  return Take(bytes)->first;
}

void CachingAllocator::TakeBack(void* pointer) {
  std::lock_guard lock(mutex_);
  Give(pointer);
}

void CachingAllocator::Count(int64_t bytes) {
  std::lock_guard lock(mutex_);
  CountHere(bytes);
}

void CachingAllocator::Trim() {
  std::lock_guard lock(mutex_);
  std::erase_if(segments_, [&](const auto& segment) {
    auto block = blocks_.find(segment.first);
    if (!block->second.free || block->second.bytes != segment.second) return false;
    EraseFree(block);
    blocks_.erase(block);
    source_->Give(segment.first, segment.second);
    stats_.reserved -= segment.second;
    return true;
  });
}

MemoryStats CachingAllocator::stats() const {
  std::lock_guard lock(mutex_);
  return stats_;
}

void CachingAllocator::ResetPeak() {
  std::lock_guard lock(mutex_);
  stats_.peak = stats_.live;
}

void CachingAllocator::SetAdvice(std::function<std::string()> advice) {
  std::lock_guard lock(mutex_);
  advice_ = std::move(advice);
}

MemoryPool::MemoryPool(Device device)
    : device_(device),
      allocator_(std::make_shared<CachingAllocator>(
          std::make_unique<CommonMemorySource>(CachingAllocator::Of(device)),
          &CachingAllocator::Of(device))) {}

PoolScope::PoolScope(const MemoryPool* pool) : outer_(current_pool) { current_pool = pool; }

PoolScope::~PoolScope() { current_pool = outer_; }

std::shared_ptr<CachingAllocator> PoolScope::Current(Device device) {
  for (const MemoryPool* pool : {current_pool, home_pool}) {
    if (pool != nullptr && pool->device_ == device) return pool->allocator_;
  }
  return nullptr;
}

HomeScope::HomeScope(const MemoryPool* pool) : outer_(home_pool) { home_pool = pool; }

HomeScope::~HomeScope() { home_pool = outer_; }

MetaMeter::MetaMeter() : counters_(std::make_shared<Counters>()), outer_(current_meter) {
  current_meter = counters_;
}

MetaMeter::~MetaMeter() { current_meter = outer_; }

std::shared_ptr<MetaMeter::Counters> MetaMeter::Current() { return current_meter; }

void MetaMeter::Counters::Add(int64_t bytes) {
  memory.live += CachingAllocator::Rounded(bytes);
  memory.peak = std::max(memory.peak, memory.live);
}

void MetaMeter::Counters::Remove(int64_t bytes) { memory.live -= CachingAllocator::Rounded(bytes); }

}  // namespace lt2
