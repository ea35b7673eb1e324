// 128-bit xxHash3 of bytes, as 32 lowercase hexadecimal digits; and a 64-bit one for keys.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace lt2 {

std::string Hash128(std::span<const std::byte> bytes);
uint64_t Hash64(std::string_view text);

}  // namespace lt2
