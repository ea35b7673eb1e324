#include "checkpoints/reader.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "checkpoints/agreement.h"
#include "checkpoints/loading.h"
#include "checkpoints/verify.h"
#include "core/file.h"
#include "core/status_macros.h"
#include "core/strings.h"

namespace lt2 {
namespace {

bool IsFloat(DType dtype) { return dtype == DType::kF32 || dtype == DType::kF64; }

absl::Status CheckMatches(const StoredTensor* stored, const TensorPiece& piece, bool convert,
                          const std::string& directory) {
  CHECK_EQ(piece.tensor.size(), piece.box.size()) << piece.path();
  if (stored == nullptr) {
    return absl::NotFoundError(StrCat(directory, ": holds no tensor ", piece.path(),
                                      "; the checkpoint belongs to another model"));
  }
  if (stored->shape != piece.shape) {
    return absl::InvalidArgumentError(
        StrCat(directory, ": ", piece.path(), " is stored with shape ", stored->shape.ToString(),
               ", this configuration needs ", piece.shape.ToString()));
  }
  const DType wanted = piece.tensor.dtype();
  if (stored->dtype == wanted || (convert && IsFloat(stored->dtype) && IsFloat(wanted))) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      StrCat(directory, ": ", piece.path(), " is stored as ", Name(stored->dtype),
             ", this configuration keeps it as ", Name(wanted),
             "; set parallel.precision to what the checkpoint was trained with"));
}

// A piece and which of the manifest's tensors it is of.
struct IndexedPiece {
  int tensor = 0;
  TensorPiece piece;
};

absl::StatusOr<std::vector<IndexedPiece>> Index(const Manifest& manifest,
                                                std::span<const TensorPiece> pieces, bool convert,
                                                const std::string& directory) {
  std::vector<IndexedPiece> indexed;
  for (const TensorPiece& piece : pieces) {
    const StoredTensor* stored = manifest.Find(piece.path());
    RETURN_IF_ERROR(CheckMatches(stored, piece, convert, directory));
    indexed.push_back({static_cast<int>(stored - manifest.tensors.data()), piece});
  }
  std::ranges::stable_sort(indexed, {}, &IndexedPiece::tensor);
  return indexed;
}

// Every rank's wants, by rank. Ranks run the same program, so they travel as they are.
std::vector<std::vector<Want>> GatherWants(std::span<const IndexedPiece> pieces,
                                           Communicator& group) {
  static_assert(std::is_trivially_copyable_v<Want>);
  std::vector<Want> mine;
  for (const auto& [tensor, piece] : pieces) mine.push_back({tensor, piece.box});
  std::vector<std::vector<Want>> wants;
  for (const std::string& theirs : group.GatherStrings(
           {reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof(Want)})) {
    wants.emplace_back(theirs.size() / sizeof(Want));
    if (!theirs.empty()) std::memcpy(wants.back().data(), theirs.data(), theirs.size());
  }
  return wants;
}

}  // namespace

absl::StatusOr<Checkpoint> Checkpoint::Open(const std::string& directory) {
  return Open(directory, std::shared_ptr<Communicator>(MakeGroupOfOne()));
}

absl::StatusOr<Checkpoint> Checkpoint::Open(const std::string& directory, Communicator& group) {
  return Open(directory, std::shared_ptr<Communicator>(std::shared_ptr<void>(), &group));
}

absl::StatusOr<Checkpoint> Checkpoint::Open(const std::string& directory,
                                            std::shared_ptr<Communicator> group) {
  Checkpoint checkpoint(directory, std::move(group));
  RETURN_IF_ERROR(checkpoint.ReadManifestTogether());
  RETURN_IF_ERROR(checkpoint.CheckFiles());
  return checkpoint;
}

absl::Status Checkpoint::ReadManifestTogether() {
  absl::StatusOr<std::string> text = "";
  if (group_->rank() == 0) {
    text = ReadManifestText(directory_);
    if (text.ok()) manifest_bytes_ = static_cast<int64_t>(text->size());
  }
  text = BroadcastResult(*group_, text);
  RETURN_IF_ERROR(text.status());
  ASSIGN_OR_RETURN(manifest_, ParseManifest(*text, JoinPath(directory_, kManifestFile)));
  return absl::OkStatus();
}

absl::Status Checkpoint::CheckFiles() {
  absl::Status failure;
  std::vector<absl::Status> damages;
  for (size_t i = group_->rank(); i < manifest_.files.size(); i += group_->size()) {
    absl::StatusOr<ByteFile> file = OpenStoredFile(directory_, manifest_, manifest_.files[i]);
    if (file.ok()) {
      files_.emplace(manifest_.files[i].name, *std::move(file));
    } else if (absl::IsDataLoss(file.status())) {
      damages.push_back(file.status());
    } else {
      failure.Update(file.status());
    }
  }
  return AgreeOn(failure, damages);
}

absl::StatusOr<const ByteFile*> Checkpoint::OpenFile(const std::string& name) {
  const auto open = files_.find(name);
  if (open != files_.end()) return &open->second;
  const std::string path = JoinPath(directory_, name);
  absl::StatusOr<ByteFile> file = ByteFile::Open(path);
  if (absl::IsNotFound(file.status())) {
    return absl::DataLossError(StrCat(path, ": a file of this checkpoint is missing"));
  }
  RETURN_IF_ERROR(file.status());
  return &files_.emplace(name, *std::move(file)).first->second;
}

absl::Status Checkpoint::Load(std::span<const TensorPiece> pieces, const LoadOptions& options) {
  const absl::StatusOr<std::vector<IndexedPiece>> indexed =
      Index(manifest_, pieces, options.convert, directory_);
  RETURN_IF_ERROR(Agree(*group_, indexed.status()));
  const std::vector<std::vector<Want>> wants = GatherWants(*indexed, *group_);
  std::vector<TensorPiece> ordered;
  for (const IndexedPiece& piece : *indexed) ordered.push_back(piece.piece);
  Loading loading(
      manifest_, ordered, wants, [this](const std::string& name) { return OpenFile(name); },
      *group_);
  loading.Run(PlanLoad(manifest_, wants, options.round_bytes));
  return AgreeOn(loading.failure(), loading.damages());
}

absl::Status Checkpoint::AgreeOn(const absl::Status& failure,
                                 const std::vector<absl::Status>& damages) {
  RETURN_IF_ERROR(Agree(*group_, failure));
  std::vector<std::string> mine;
  for (const absl::Status& damage : damages) mine.emplace_back(damage.message());
  return DamageStatus(directory_, GatherList(*group_, mine));
}

int64_t Checkpoint::bytes_read() const {
  int64_t bytes = manifest_bytes_;
  for (const auto& [name, file] : files_) bytes += file.bytes_read();
  return bytes;
}

}  // namespace lt2
