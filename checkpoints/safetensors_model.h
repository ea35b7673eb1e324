// A model in safetensors: all tensors of one file, or of several with an index.
//
//   ASSIGN_OR_RETURN(const SafetensorsModel model, SafetensorsModel::Open("runs/llama"));
//   RETURN_IF_ERROR(model.Read("model.norm.weight", 0, bytes));
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoints/safetensors.h"

namespace lt2 {

inline constexpr char kSafetensorsFile[] = "model.safetensors";
inline constexpr char kSafetensorsIndexFile[] = "model.safetensors.index.json";

class SafetensorsModel {
 public:
  // `path`: a file, an index (*.index.json), or a folder that holds either under the names above.
  // Reads headers only. NotFound if there is nothing of this; DataLoss naming the file that is
  // damaged, missing, or not what the index says; InvalidArgument as ReadSafetensorsHeader.
  static absl::StatusOr<SafetensorsModel> Open(const std::string& path);

  const std::string& path() const { return path_; }
  // Of the first file.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  // By name.
  const std::map<std::string, SafeTensor>& tensors() const { return tensors_; }
  const SafeTensor* Find(const std::string& name) const;
  // Fills `to` with bytes of a tensor that is there, from its byte `begin` on.
  absl::Status Read(const std::string& name, int64_t begin, std::span<std::byte> to) const;
  // Of all files, so far.
  int64_t bytes_read() const;

 private:
  explicit SafetensorsModel(std::string path) : path_(std::move(path)) {}
  absl::Status AddFile(const std::string& path);
  absl::Status AddIndexed(const std::string& index);

  std::string path_;
  std::map<std::string, std::string> metadata_;
  std::map<std::string, SafeTensor> tensors_;
  std::map<std::string, size_t> file_of_;  // by tensor
  std::vector<ByteFile> files_;
};

}  // namespace lt2
