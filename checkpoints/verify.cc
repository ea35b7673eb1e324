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

// The boxes of one file that do not match, so that a damaged frame does not hide them.
void VerifyBoxes(const std::string& path, const StoredFile& stored_file, VerifyReport& report) {
  const absl::StatusOr<ByteFile> file = ByteFile::Open(path);
  if (!file.ok()) return;
  std::vector<std::byte> bytes;
  for (const auto& [tensor, stored] : report.manifest.BoxesOf(stored_file.name)) {
    bytes.resize(stored->box.size() * SizeOf(tensor->dtype));
    const absl::Status status = ReadStoredBox(*file, *tensor, *stored, bytes);
    if (status.ok()) continue;
    report.damages.push_back(
        {.file = path, .tensor = tensor->path(), .what = std::string(status.message())});
  }
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
  if (!FileSystem::Get().IsDirectory(directory)) {
    return absl::NotFoundError(StrCat(directory, ": no such checkpoint directory"));
  }
  VerifyReport report{.directory = directory, .manifest = {}, .damages = {}};
  absl::StatusOr<Manifest> manifest = ReadManifest(directory);
  if (absl::IsInvalidArgument(manifest.status())) return manifest.status();
  if (!manifest.ok()) {
    report.damages.push_back({.file = JoinPath(directory, kManifestFile),
                              .tensor = "",
                              .what = std::string(manifest.status().message())});
    return report;
  }
  report.manifest = *std::move(manifest);
  for (const StoredFile& stored : report.manifest.files) {
    const std::string path = JoinPath(directory, stored.name);
    const absl::StatusOr<ByteFile> file = OpenStoredFile(directory, report.manifest, stored);
    if (!file.ok()) {
      report.damages.push_back(
          {.file = path, .tensor = "", .what = std::string(file.status().message())});
    }
    VerifyBoxes(path, stored, report);
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
