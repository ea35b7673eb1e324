// Files in safetensors made of what a test says.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "checkpoints/safetensors.h"
#include "core/file.h"
#include "core/philox.h"
#include "core/strings.h"

namespace lt2 {

struct SampleSafeTensor {
  std::string name, dtype;
  Shape shape;
  std::string bytes;
};

// A file's bytes from a header's text, whatever it says, and data.
inline std::string SafetensorsBytes(const std::string& json, const std::string& data) {
  const uint64_t length = json.size();
  std::string bytes(sizeof(length), '\0');
  std::memcpy(bytes.data(), &length, sizeof(length));
  return bytes + json + data;
}

// A sound file of these tensors.
inline std::string SafetensorsBytes(const std::vector<SampleSafeTensor>& tensors,
                                    const std::map<std::string, std::string>& metadata = {}) {
  SafetensorsHeader header{.metadata = metadata, .tensors = {}};
  for (const SampleSafeTensor& tensor : tensors) {
    header.tensors.push_back({.name = tensor.name,
                              .dtype = tensor.dtype,
                              .shape = tensor.shape,
                              .bytes = static_cast<int64_t>(tensor.bytes.size())});
  }
  std::string bytes = LayOutSafetensors(header);
  for (const SafeTensor& placed : header.tensors) {
    for (const SampleSafeTensor& tensor : tensors) {
      if (tensor.name == placed.name) bytes += tensor.bytes;
    }
  }
  return bytes;
}

// Any bytes, a function of the seed.
inline std::string RandomBytes(int64_t count, uint64_t seed) {
  std::string bytes(count, '\0');
  for (int64_t i = 0; i < count; ++i) bytes[i] = static_cast<char>(Philox(seed, i)[0]);
  return bytes;
}

}  // namespace lt2
