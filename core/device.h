// Where a tensor lives and where a kernel runs.
#pragma once

#include <cstdint>
#include <ostream>

namespace lt2 {

// reference: float64 straight from the formula. meta: nothing runs, shapes and costs are counted.
enum class Backend : uint8_t { kReference, kCpu, kCuda, kMeta };

constexpr const char* Name(Backend backend) {
  switch (backend) {
    case Backend::kReference:
      return "reference";
    case Backend::kCpu:
      return "cpu";
    case Backend::kCuda:
      return "cuda";
    case Backend::kMeta:
      return "meta";
  }
  return "?";
}

struct Device {
  Backend backend = Backend::kCpu;
  int8_t index = 0;
  bool operator==(const Device&) const = default;
};

inline std::ostream& operator<<(std::ostream& os, Device device) {
  return os << Name(device.backend);
}

// A device and a queue of work on it; on the CPU work is done when the call returns, on a GPU the
// queue is the calling thread's own unless there is a handle (cudaStream_t).
struct Stream {
  Device device;
  void* handle = nullptr;
};

}  // namespace lt2
