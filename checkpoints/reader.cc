#include "checkpoints/reader.h"

#include <cstring>

#include "checkpoints/verify.h"
#include "core/file.h"
#include "core/status_macros.h"
#include "core/strings.h"

namespace lt2 {
namespace {

bool IsFloat(DType dtype) { return dtype == DType::kF32 || dtype == DType::kF64; }

// Copies `elements` from stored bytes to tensor memory, converting between float types.
void CopyElements(const std::byte* from, DType from_type, std::byte* to, DType to_type,
                  int64_t elements) {
  if (from_type == to_type) {
    std::memcpy(to, from, elements * SizeOf(to_type));
    return;
  }
  DispatchFloat(from_type, [&]<class From>() {
    DispatchFloat(to_type, [&]<class To>() {
      for (int64_t i = 0; i < elements; ++i) {
        From value;  // stored bytes need not be aligned
        std::memcpy(&value, from + i * sizeof(From), sizeof(From));
        reinterpret_cast<To*>(to)[i] = static_cast<To>(value);
      }
    });
  });
}

absl::Status CheckMatches(const StoredTensor& stored, const TensorPiece& piece, bool convert,
                          const std::string& directory) {
  if (stored.shape != piece.shape) {
    return absl::InvalidArgumentError(
        StrCat(directory, ": ", piece.path(), " is stored with shape ", stored.shape.ToString(),
               ", this configuration needs ", piece.shape.ToString()));
  }
  const DType wanted = piece.tensor.dtype();
  if (stored.dtype == wanted || (convert && IsFloat(stored.dtype) && IsFloat(wanted))) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      StrCat(directory, ": ", piece.path(), " is stored as ", Name(stored.dtype),
             ", this configuration keeps it as ", Name(wanted),
             "; set parallel.precision to what the checkpoint was trained with"));
}

}  // namespace

absl::StatusOr<Checkpoint> Checkpoint::Open(const std::string& directory) {
  ASSIGN_OR_RETURN(Manifest manifest, ReadManifest(directory));
  Checkpoint checkpoint(directory, std::move(manifest));
  RETURN_IF_ERROR(checkpoint.CheckFiles());
  return checkpoint;
}

absl::Status Checkpoint::CheckFiles() {
  for (const StoredFile& stored : manifest_.files) {
    ASSIGN_OR_RETURN(ByteFile file, OpenStoredFile(directory_, manifest_, stored));
    files_.emplace(stored.name, std::move(file));
  }
  return absl::OkStatus();
}

absl::Status Checkpoint::Load(std::span<const TensorPiece> pieces, const LoadOptions& options) {
  for (const TensorPiece& piece : pieces) {
    if (!piece.tensor.on_gpu()) {
      RETURN_IF_ERROR(LoadPiece(piece, options));
      continue;
    }
    TensorPiece on_host = piece;
    on_host.tensor = Tensor::Empty(piece.tensor.shape(), piece.tensor.dtype(), {Backend::kCpu});
    RETURN_IF_ERROR(LoadPiece(on_host, options));
    piece.tensor.CopyFrom(on_host.tensor);
  }
  scratch_ = {};
  return absl::OkStatus();
}

absl::Status Checkpoint::LoadPiece(const TensorPiece& piece, const LoadOptions& options) {
  CHECK_EQ(piece.tensor.size(), piece.box.size()) << piece.path();
  const StoredTensor* tensor = manifest_.Find(piece.path());
  if (tensor == nullptr) {
    return absl::NotFoundError(StrCat(directory_, ": holds no tensor ", piece.path(),
                                      "; the checkpoint belongs to another model"));
  }
  RETURN_IF_ERROR(CheckMatches(*tensor, piece, options.convert, directory_));
  for (const StoredBox& stored : tensor->boxes) {
    RETURN_IF_ERROR(LoadBox(*tensor, stored, piece, options));
  }
  return absl::OkStatus();
}

absl::Status Checkpoint::LoadBox(const StoredTensor& tensor, const StoredBox& stored,
                                 const TensorPiece& piece, const LoadOptions& options) {
  const std::optional<Box> both = Intersect(stored.box, piece.box);
  if (!both) return absl::OkStatus();
  const ByteFile& file = files_.at(stored.file);
  const int64_t from_size = SizeOf(tensor.dtype);
  const int64_t to_size = SizeOf(piece.tensor.dtype());
  auto* to = static_cast<std::byte*>(piece.tensor.raw());

  if (*both == stored.box || options.verify_all) {
    scratch_.resize(stored.box.size() * from_size);
    RETURN_IF_ERROR(ReadStoredBox(file, tensor, stored, scratch_));
    ForEachRun(stored.box, piece.box, [&](int64_t source, int64_t target, int64_t elements) {
      CopyElements(scratch_.data() + source * from_size, tensor.dtype, to + target * to_size,
                   piece.tensor.dtype(), elements);
    });
    return absl::OkStatus();
  }
  absl::Status status;
  ForEachRun(stored.box, piece.box, [&](int64_t source, int64_t target, int64_t elements) {
    if (!status.ok()) return;
    scratch_.resize(elements * from_size);
    status = file.Read(stored.offset + source * from_size, scratch_);
    CopyElements(scratch_.data(), tensor.dtype, to + target * to_size, piece.tensor.dtype(),
                 elements);
  });
  return status;
}

}  // namespace lt2
