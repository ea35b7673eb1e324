#include "checkpoints/export.h"

#include "absl/strings/str_format.h"
#include "checkpoints/assemble.h"
#include "checkpoints/publish.h"
#include "checkpoints/safetensors_model.h"
#include "checkpoints/tensor_stream.h"
#include "core/file.h"
#include "core/status_macros.h"
#include "core/strings.h"

namespace lt2 {
namespace {

constexpr char kGroup[] = "param";

// "format" is what Hugging Face's loaders ask for: tensors as PyTorch has them.
std::map<std::string, std::string> MetadataOf(const CheckpointInfo& info) {
  return {{"format", "pt"},
          {kMetadataConfig, info.config},
          {kMetadataStep, StrCat(info.step)},
          {kMetadataTokens, StrCat(info.tokens)},
          {kMetadataTokenizer, info.tokenizer},
          {kMetadataTokenizerHash, info.tokenizer_hash}};
}

// One export under way.
class Exporter {
 public:
  Exporter(const Checkpoint& from, const ExportOptions& options) : from_(from), options_(options) {
    AddFile();
    for (const StoredTensor& tensor : from.manifest().tensors) {
      if (tensor.group == kGroup) Plan(tensor);
    }
  }

  absl::Status Write(const std::string& folder, const ScanOptions& scan) {
    RETURN_IF_ERROR(CreateFiles(folder));
    std::vector<int64_t> bytes;
    for (const Part& part : parts_) bytes.push_back(part.from->bytes());
    RETURN_IF_ERROR(ForEachItem(bytes, scan, [&](size_t i) { return Copy(parts_[i]); }));
    for (const ByteFile& file : files_) RETURN_IF_ERROR(FileSystem::Get().Sync(file.path()));
    const std::string config = JoinPath(folder, "config.toml");
    RETURN_IF_ERROR(FileSystem::Get().WriteFile(config, from_.info().config));
    return FileSystem::Get().Sync(folder);
  }

  ExportedModel result() const {
    ExportedModel result{.tensors = static_cast<int64_t>(parts_.size()),
                         .files = static_cast<int>(headers_.size())};
    for (const Part& part : parts_) result.values += part.from->shape.size();
    for (const SafetensorsHeader& header : headers_) result.bytes += BytesOf(header);
    return result;
  }

 private:
  // A tensor and where it goes.
  struct Part {
    const StoredTensor* from;
    size_t file;
    int64_t offset;
  };

  static int64_t BytesOf(const SafetensorsHeader& header) {
    int64_t bytes = 0;
    for (const SafeTensor& tensor : header.tensors) bytes += tensor.bytes;
    return bytes;
  }

  void AddFile() { headers_.push_back({.metadata = MetadataOf(from_.info()), .tensors = {}}); }

  FloatType TypeOf(const StoredTensor& tensor) const {
    return options_.type.value_or(FloatTypeOf(tensor.dtype));
  }

  // Puts a tensor into the last file, or into another where it would be too much.
  void Plan(const StoredTensor& from) {
    const FloatType type = TypeOf(from);
    const SafeTensor tensor{.name = from.name,
                            .dtype = Name(type),
                            .shape = from.shape,
                            .bytes = from.shape.size() * SizeOf(type)};
    const bool full = options_.file_bytes > 0 && !headers_.back().tensors.empty() &&
                      BytesOf(headers_.back()) + tensor.bytes > options_.file_bytes;
    if (full) AddFile();
    headers_.back().tensors.push_back(tensor);
  }

  std::string FileName(size_t file) const {
    if (headers_.size() == 1) return kSafetensorsFile;
    return absl::StrFormat("model-%05d-of-%05d.safetensors", file + 1, headers_.size());
  }

  absl::Status CreateFiles(const std::string& folder) {
    std::map<std::string, std::string> file_of;
    for (size_t i = 0; i < headers_.size(); ++i) {
      const std::string begin = LayOutSafetensors(headers_[i]);
      ASSIGN_OR_RETURN(ByteFile file, ByteFile::OpenToWrite(JoinPath(folder, FileName(i))));
      RETURN_IF_ERROR(file.Write(0, std::as_bytes(std::span(begin))));
      files_.push_back(std::move(file));
      for (const SafeTensor& tensor : headers_[i].tensors) {
        file_of[tensor.name] = FileName(i);
        parts_.push_back(
            {from_.manifest().Find(StrCat(kGroup, "/", tensor.name)), i, tensor.offset});
      }
    }
    if (headers_.size() == 1) return absl::OkStatus();
    return FileSystem::Get().WriteFile(JoinPath(folder, kSafetensorsIndexFile),
                                       SafetensorsIndex(file_of, result().bytes));
  }

  absl::Status Copy(const Part& part) const {
    const FloatType stored = FloatTypeOf(part.from->dtype), type = TypeOf(*part.from);
    TensorStream stream(from_, *part.from, RowsAtATime(*part.from));
    std::vector<std::byte> converted;
    int64_t at = part.offset;
    while (!stream.done()) {
      ASSIGN_OR_RETURN(const TensorRows rows, stream.Next());
      converted.resize(rows.box.size() * SizeOf(type));
      ConvertFloats(stored, rows.bytes, type, converted);
      RETURN_IF_ERROR(files_[part.file].Write(at, converted));
      at += static_cast<int64_t>(converted.size());
    }
    return absl::OkStatus();
  }

  const Checkpoint& from_;
  const ExportOptions options_;
  std::vector<SafetensorsHeader> headers_;  // by file
  std::vector<ByteFile> files_;
  std::vector<Part> parts_;
};

}  // namespace

absl::StatusOr<ExportedModel> ExportSafetensors(const Checkpoint& from, const std::string& to,
                                                const ExportOptions& options,
                                                const ScanOptions& scan) {
  for (const StoredTensor& tensor : from.manifest().tensors) {
    if (tensor.group == kGroup && !IsFloat(tensor.dtype)) {
      return absl::InvalidArgumentError(StrCat(from.directory(), ": ", tensor.path(),
                                               " is stored as ", Name(tensor.dtype),
                                               ", which no parameter is"));
    }
  }
  Exporter exporter(from, options);
  const std::string id = MakeCheckpointId(to, from.info().step);
  RETURN_IF_ERROR(PublishFolder(
      to, id, [&](const std::string& folder) { return exporter.Write(folder, scan); }));
  return exporter.result();
}

}  // namespace lt2
