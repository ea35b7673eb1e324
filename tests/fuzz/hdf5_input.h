// Which damaged HDF5 files a reader can be held responsible for.
#pragma once

#include <cstdint>
#include <string_view>

namespace lt2 {

// HDF5 1.10 itself hangs or crashes on damage that no checksum covers: all metadata of the formats
// before 1.8, and variable-length text, which lies in collections marked GCOL. Of other bytes it
// knows which are metadata, and whether they are whole.
inline bool HasChecksums(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  constexpr size_t kVersion = 8;  // in the superblock
  return size > kVersion && data[kVersion] >= 2 && bytes.find("GCOL") == std::string_view::npos;
}

}  // namespace lt2
