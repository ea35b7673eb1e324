// 128-bit xxHash3 of bytes, as 32 lowercase hexadecimal digits; and a 64-bit one for keys.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace lt2 {

std::string Hash128(std::span<const std::byte> bytes);
uint64_t Hash64(std::string_view text);

// Hash128 of bytes that come in pieces.
class Hasher128 {
 public:
  Hasher128();
  Hasher128(Hasher128&&) noexcept;
  Hasher128& operator=(Hasher128&&) noexcept;
  ~Hasher128();
  void Add(std::span<const std::byte> bytes);
  std::string Digest() const;  // of what was added so far

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lt2
