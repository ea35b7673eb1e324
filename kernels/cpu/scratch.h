// Working memory of a thread inside a kernel: grows to what is asked for, then is reused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

namespace lt2::cpu {

class Scratch {
 public:
  // The calling thread's; all pieces taken before are given back.
  static Scratch& Restart() {
    thread_local Scratch scratch;
    scratch.next_ = 0;
    return scratch;
  }

  // n elements, aligned for vectors, of any (finite, if T is always the same) content.
  template <class T>
  T* Take(int64_t n) {
    const size_t bytes = static_cast<size_t>(n) * sizeof(T);
    if (next_ == pieces_.size()) pieces_.emplace_back();
    Piece& piece = pieces_[next_++];
    if (piece.bytes < bytes) {
      piece.memory.reset(static_cast<std::byte*>(operator new(bytes, kAlignment)));
      piece.bytes = bytes;
      std::uninitialized_fill_n(piece.memory.get(), bytes, std::byte{0});
    }
    return reinterpret_cast<T*>(piece.memory.get());
  }

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct Delete {
    void operator()(std::byte* p) const { operator delete(p, kAlignment); }
  };
  struct Piece {
    std::unique_ptr<std::byte, Delete> memory;
    size_t bytes = 0;
  };
  std::vector<Piece> pieces_;
  size_t next_ = 0;
};

}  // namespace lt2::cpu
