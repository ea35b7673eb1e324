#include "checkpoints/verify.h"

#include <algorithm>

#include "checkpoints/shard_file.h"
#include "core/file.h"
#include "core/status_macros.h"
#include "core/strings.h"

namespace lt2 {
namespace {

std::vector<ByteRange> RangesOf(const Manifest& manifest, const std::string& file) {
  std::vector<ByteRange> ranges;
  for (const auto& [tensor, stored] : manifest.BoxesOf(file)) {
    ranges.push_back({stored->offset, stored->box.size() * SizeOf(tensor->dtype)});
  }
  return ranges;
}

// OK for sound bytes and for damage, which is noted; else what kept them from being read.
absl::Status Note(const absl::Status& status, const std::string& path, const std::string& tensor,
                  VerifyReport& report) {
  if (!absl::IsDataLoss(status)) return status;
  report.damages.push_back({.file = path, .tensor = tensor, .what = std::string(status.message())});
  return absl::OkStatus();
}

// The boxes of one file that do not match, so that a damaged frame does not hide them.
absl::Status VerifyBoxes(const std::string& path, const StoredFile& stored_file,
                         VerifyReport& report) {
  const absl::StatusOr<ByteFile> file = ByteFile::Open(path);
  if (absl::IsNotFound(file.status())) return absl::OkStatus();  // noted by OpenStoredFile
  RETURN_IF_ERROR(file.status());
  std::vector<std::byte> bytes;
  for (const auto& [tensor, stored] : report.manifest.BoxesOf(stored_file.name)) {
    bytes.resize(stored->box.size() * SizeOf(tensor->dtype));
    RETURN_IF_ERROR(
        Note(ReadStoredBox(*file, *tensor, *stored, bytes), path, tensor->path(), report));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status VerifyReport::status() const {
  if (sound()) return absl::OkStatus();
  std::string text = StrCat(directory, " is damaged");
  const size_t shown = std::min<size_t>(damages.size(), 10);
  for (size_t i = 0; i < shown; ++i) StrAppend(&text, "\n  ", damages[i].what);
  if (shown < damages.size()) StrAppend(&text, "\n  and ", damages.size() - shown, " more");
  return absl::DataLossError(text);
}

absl::StatusOr<VerifyReport> Verify(const std::string& directory) {
  VerifyReport report{.directory = directory, .manifest = {}, .damages = {}};
  absl::StatusOr<Manifest> manifest = ReadManifest(directory);
  if (!manifest.ok()) {
    RETURN_IF_ERROR(Note(manifest.status(), JoinPath(directory, kManifestFile), "", report));
    return report;
  }
  report.manifest = *std::move(manifest);
  for (const StoredFile& stored : report.manifest.files) {
    const std::string path = JoinPath(directory, stored.name);
    RETURN_IF_ERROR(
        Note(OpenStoredFile(directory, report.manifest, stored).status(), path, "", report));
    RETURN_IF_ERROR(VerifyBoxes(path, stored, report));
  }
  return report;
}

absl::StatusOr<ByteFile> OpenStoredFile(const std::string& directory, const Manifest& manifest,
                                        const StoredFile& stored) {
  const std::string path = JoinPath(directory, stored.name);
  absl::StatusOr<ByteFile> file = ByteFile::Open(path);
  if (absl::IsNotFound(file.status())) {
    return absl::DataLossError(StrCat(path, ": a file of this checkpoint is missing"));
  }
  RETURN_IF_ERROR(file.status());
  if (file->size() != stored.bytes) {
    return absl::DataLossError(
        StrCat(path, ": has ", file->size(), " bytes, was written with ", stored.bytes));
  }
  ASSIGN_OR_RETURN(const std::string frame, FrameHash(*file, RangesOf(manifest, stored.name)));
  if (frame != stored.frame) {
    return absl::DataLossError(StrCat(
        path,
        ": its structure does not match the manifest: damaged, or of another checkpoint than ",
        manifest.info.id));
  }
  return file;
}

}  // namespace lt2
