#include "checkpoints/safetensors_model.h"

#include <filesystem>
#include <set>

#include "core/check.h"
#include "core/file.h"
#include "core/status_macros.h"
#include "core/strings.h"

namespace lt2 {
namespace {

constexpr std::string_view kIndexEnd = ".index.json";

// The file or index to begin with.
absl::StatusOr<std::string> EntryOf(const std::string& path) {
  FileSystem& files = FileSystem::Get();
  if (!files.Exists(path)) {
    return absl::NotFoundError(StrCat(path, ": no such file or folder"));
  }
  if (!files.IsDirectory(path)) return path;
  for (const char* name : {kSafetensorsIndexFile, kSafetensorsFile}) {
    if (files.Exists(JoinPath(path, name))) return JoinPath(path, name);
  }
  return absl::NotFoundError(StrCat(path, ": holds neither ", kSafetensorsFile, " nor ",
                                    kSafetensorsIndexFile,
                                    "; name a file if it is called "
                                    "otherwise"));
}

}  // namespace

absl::StatusOr<SafetensorsModel> SafetensorsModel::Open(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string entry, EntryOf(path));
  SafetensorsModel model(path);
  RETURN_IF_ERROR(entry.ends_with(kIndexEnd) ? model.AddIndexed(entry) : model.AddFile(entry));
  return model;
}

const SafeTensor* SafetensorsModel::Find(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

absl::Status SafetensorsModel::Read(const std::string& name, int64_t begin,
                                    std::span<std::byte> to) const {
  const SafeTensor& tensor = tensors_.at(name);
  CHECK_LE(begin + static_cast<int64_t>(to.size()), tensor.bytes) << name;
  return files_[file_of_.at(name)].Read(tensor.offset + begin, to);
}

absl::Status SafetensorsModel::AddFile(const std::string& path) {
  ASSIGN_OR_RETURN(ByteFile file, ByteFile::Open(path));
  ASSIGN_OR_RETURN(SafetensorsHeader header, ReadSafetensorsHeader(file));
  if (files_.empty()) metadata_ = std::move(header.metadata);
  for (SafeTensor& tensor : header.tensors) {
    if (!file_of_.emplace(tensor.name, files_.size()).second) {
      return absl::DataLossError(StrCat(path, ": ", tensor.name, " is in ",
                                        files_[file_of_.at(tensor.name)].path(), " too"));
    }
    std::string name = tensor.name;
    tensors_.emplace(std::move(name), std::move(tensor));
  }
  files_.push_back(std::move(file));
  return absl::OkStatus();
}

absl::Status SafetensorsModel::AddIndexed(const std::string& index) {
  ASSIGN_OR_RETURN(const std::string text, FileSystem::Get().ReadFile(index, kMostText));
  ASSIGN_OR_RETURN(const auto file_of, ParseSafetensorsIndex(text, index));
  std::set<std::string> names;
  for (const auto& [tensor, file] : file_of) names.insert(file);
  const std::string folder = std::filesystem::path(index).parent_path();
  for (const std::string& name : names) {
    const std::string path = JoinPath(folder, name);
    const absl::Status added = AddFile(path);
    if (absl::IsNotFound(added)) {
      return absl::DataLossError(StrCat(path, ": a file that ", index, " names is missing"));
    }
    RETURN_IF_ERROR(added);
  }
  for (const auto& [tensor, file] : file_of) {
    const auto found = file_of_.find(tensor);
    if (found == file_of_.end() || files_[found->second].path() != JoinPath(folder, file)) {
      return absl::DataLossError(StrCat(index, ": ", tensor, " is not in ", file));
    }
  }
  for (const auto& [tensor, file] : file_of_) {
    if (!file_of.contains(tensor)) {
      return absl::DataLossError(
          StrCat(files_[file].path(), ": ", tensor, " is not named by ", index));
    }
  }
  return absl::OkStatus();
}

int64_t SafetensorsModel::bytes_read() const {
  int64_t bytes = 0;
  for (const ByteFile& file : files_) bytes += file.bytes_read();
  return bytes;
}

}  // namespace lt2
