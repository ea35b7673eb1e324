#include "checkpoints/index_file.h"

#include <vector>

#include "checkpoints/byte_file.h"
#include "checkpoints/shard_file.h"
#include "core/file.h"
#include "core/hdf5.h"
#include "core/status_macros.h"

namespace lt2 {
namespace {

absl::Status WriteTensor(h5::File& file, const StoredTensor& tensor) {
  std::vector<h5::File::VirtualPiece> pieces;
  for (const StoredBox& stored : tensor.boxes) {
    pieces.push_back({.file = stored.file, .dataset = stored.dataset, .box = stored.box});
  }
  return file.WriteVirtual(tensor.path(), H5Type(tensor.dtype), tensor.shape, pieces);
}

}  // namespace

absl::StatusOr<StoredFile> WriteIndex(const std::string& directory, const Manifest& manifest) {
  const std::string path = JoinPath(directory, kIndexFile);
  ASSIGN_OR_RETURN(h5::File file, h5::File::Create(path));
  RETURN_IF_ERROR(file.SetAttribute("/", "checkpoint", manifest.info.id));
  RETURN_IF_ERROR(file.SetAttribute("/", "format", int64_t{kCheckpointFormat}));
  RETURN_IF_ERROR(file.SetAttribute("/", "step", manifest.info.step));
  for (const StoredTensor& tensor : manifest.tensors) RETURN_IF_ERROR(WriteTensor(file, tensor));
  RETURN_IF_ERROR(file.Close());
  RETURN_IF_ERROR(FileSystem::Get().Sync(path));

  ASSIGN_OR_RETURN(const ByteFile written, ByteFile::Open(path));
  ASSIGN_OR_RETURN(std::string frame, FrameHash(written, {}));
  return StoredFile{.name = kIndexFile, .bytes = written.size(), .frame = std::move(frame)};
}

}  // namespace lt2
