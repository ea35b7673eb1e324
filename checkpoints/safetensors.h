// safetensors, the format in which Hugging Face keeps models: named dense tensors in one file.
//
//   8 bytes   the header's length, little-endian
//   header    JSON: name -> {"dtype", "shape", "data_offsets": [begin, end]}, "__metadata__" ->
//   texts data      the tensors' bytes one after another, row-major, little-endian, without holes
//
// Nothing in a file is trusted: what contradicts this is DataLoss naming the file and the tensor or
// byte; a dtype or rank that this program does not know is InvalidArgument.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoints/byte_file.h"
#include "core/shape.h"

namespace lt2 {

struct SafeTensor {
  std::string name;
  std::string dtype;   // in the format's words: "F32", "BF16"
  Shape shape;         // rank 0: one element
  int64_t offset = 0;  // of its first byte in the file
  int64_t bytes = 0;
};

struct SafetensorsHeader {
  std::map<std::string, std::string> metadata;
  std::vector<SafeTensor> tensors;  // in the order of their bytes
};

// Reads the header alone, and no more of it than the file has.
absl::StatusOr<SafetensorsHeader> ReadSafetensorsHeader(const ByteFile& file);
// The same from the header's JSON, with so many bytes of data behind it.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(std::string_view json, int64_t data_bytes,
                                                         const std::string& source);

// Places the tensors one after another, those of wide elements first so that all are aligned, and
// returns what a file begins with: everything before the data. Their bytes are set already.
std::string LayOutSafetensors(SafetensorsHeader& header);

// "model-00001-of-00003.safetensors" by tensor, from the text of model.safetensors.index.json.
absl::StatusOr<std::map<std::string, std::string>> ParseSafetensorsIndex(std::string_view json,
                                                                         const std::string& source);
std::string SafetensorsIndex(const std::map<std::string, std::string>& file_of, int64_t bytes);

}  // namespace lt2
