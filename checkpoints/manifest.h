// manifest.json: what a checkpoint holds, where its bytes lie and what they must hash to.
//
// FORMAT.md describes every key. Reading never trusts the file: whatever does not parse, does not
// hash or does not tile its tensors is DataLoss naming the file; a newer format is InvalidArgument.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/box.h"
#include "core/dtype.h"

namespace lt2 {

inline constexpr int kCheckpointFormat = 1;
inline constexpr char kManifestFile[] = "manifest.json";
inline constexpr char kIndexFile[] = "index.h5";

// Everything about a moment of a run that is not a tensor.
struct CheckpointInfo {
  std::string id;         // 16 hexadecimal digits, made by the writer, different for every save
  int64_t step = 0;       // finished updates
  int64_t tokens = 0;     // consumed so far
  int64_t samples = 0;    // consumed so far: the position in the data
  std::string data;       // fingerprint of the data the position counts in
  std::string tokenizer;  // name
  std::string tokenizer_hash;
  uint64_t seed = 0;
  std::string config;                               // the resolved configuration, TOML
  std::string mesh;                                 // that wrote it, "pp=1,dp=2,cp=1,tp=1 zero=1"
  int ranks = 1;                                    // that wrote it
  std::string code;                                 // version of the program
  nlohmann::json extra = nlohmann::json::object();  // counters of the trainer, free form
};

// A dense row-major piece of a tensor in a shard.
struct StoredBox {
  std::string file;     // "shard-00000.h5", beside the manifest
  std::string dataset;  // its path in that file
  int64_t offset = 0;   // of its first byte in that file
  Box box;
  std::string hash;  // Hash128 of its bytes
};

struct StoredTensor {
  std::string group;  // "param", "adam_m", "adam_v"
  std::string name;   // logical name
  DType dtype = DType::kF32;
  Shape shape;
  std::vector<StoredBox> boxes;  // tile the tensor exactly once

  std::string path() const { return group + "/" + name; }
  int64_t bytes() const { return shape.size() * SizeOf(dtype); }
};

// A file of the checkpoint. `frame` is the Hash128 of all its bytes that belong to no box, in
// order: HDF5's own structures and the checkpoint's id. Frame and boxes together see every bit.
struct StoredFile {
  std::string name;
  int64_t bytes = 0;
  std::string frame;
};

struct Manifest {
  CheckpointInfo info;
  std::vector<StoredFile> files;
  std::vector<StoredTensor> tensors;

  // nullptr if there is none. path: "group/name".
  const StoredTensor* Find(std::string_view path) const;
  int64_t bytes() const;  // of all files
  // The boxes of one file, ordered by offset.
  std::vector<std::pair<const StoredTensor*, const StoredBox*>> BoxesOf(
      std::string_view file) const;
};

void to_json(nlohmann::json& json, const StoredFile& file);
void from_json(const nlohmann::json& json, StoredFile& file);
void to_json(nlohmann::json& json, const StoredTensor& tensor);
void from_json(const nlohmann::json& json, StoredTensor& tensor);

std::string ToJson(const Manifest& manifest);
// `source` names the file in messages.
absl::StatusOr<Manifest> ParseManifest(std::string_view text, const std::string& source);
// The text of DIRECTORY/manifest.json. NotFound if there is no such directory; DataLoss if the
// directory lacks it; else what kept it from being read.
absl::StatusOr<std::string> ReadManifestText(const std::string& directory);
// The same, parsed.
absl::StatusOr<Manifest> ReadManifest(const std::string& directory);

// OK if the boxes cover the tensor and no two overlap, else DataLoss saying which elements do not.
absl::Status CheckTiling(const StoredTensor& tensor);

}  // namespace lt2
