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
                  std::vector<Damage>& damages) {
  if (!absl::IsDataLoss(status)) return status;
  damages.push_back({.file = path, .tensor = tensor, .what = std::string(status.message())});
  return absl::OkStatus();
}

using StoredBoxes = std::vector<std::pair<const StoredTensor*, const StoredBox*>>;

// What is verified in one go: a file's frame, or boxes of it that lie one after another.
struct Item {
  const StoredFile* file;
  StoredBoxes boxes;  // none: the frame
  int64_t bytes = 0;
};

// All of a checkpoint: of each file its frame, then its boxes.
std::vector<Item> ItemsOf(const Manifest& manifest) {
  constexpr int64_t kBytes = 16 << 20;  // small boxes go together
  std::vector<Item> items;
  for (const StoredFile& file : manifest.files) {
    const size_t frame = items.size();
    items.push_back({.file = &file, .boxes = {}, .bytes = file.bytes});
    for (const auto& box : manifest.BoxesOf(file.name)) {
      const int64_t bytes = box.second->box.size() * SizeOf(box.first->dtype);
      if (items.back().boxes.empty() || items.back().bytes >= kBytes) {
        items.push_back({.file = &file, .boxes = {}, .bytes = 0});
      }
      items.back().boxes.push_back(box);
      items.back().bytes += bytes;
      items[frame].bytes -= bytes;
    }
  }
  return items;
}

// The boxes are looked at even where the frame is damaged.
absl::Status VerifyBoxes(const std::string& path, const StoredBoxes& boxes,
                         std::vector<Damage>& damages) {
  const absl::StatusOr<ByteFile> file = ByteFile::Open(path);
  if (absl::IsNotFound(file.status())) return absl::OkStatus();  // noted with the frame
  RETURN_IF_ERROR(file.status());
  for (const auto& [tensor, stored] : boxes) {
    RETURN_IF_ERROR(Note(CheckStoredBox(*file, *tensor, *stored), path, tensor->path(), damages));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status DamageStatus(const std::string& directory, const std::vector<std::string>& damages) {
  if (damages.empty()) return absl::OkStatus();
  std::string text = StrCat(directory, " is damaged");
  const size_t shown = std::min<size_t>(damages.size(), 10);
  for (size_t i = 0; i < shown; ++i) StrAppend(&text, "\n  ", damages[i]);
  if (shown < damages.size()) StrAppend(&text, "\n  and ", damages.size() - shown, " more");
  return absl::DataLossError(text);
}

absl::Status VerifyReport::status() const {
  std::vector<std::string> texts;
  for (const Damage& damage : damages) texts.push_back(damage.what);
  return DamageStatus(directory, texts);
}

absl::StatusOr<VerifyReport> Verify(const std::string& directory, const ScanOptions& options) {
  VerifyReport report{.directory = directory, .manifest = {}, .damages = {}};
  absl::StatusOr<Manifest> manifest = ReadManifest(directory);
  if (!manifest.ok()) {
    RETURN_IF_ERROR(
        Note(manifest.status(), JoinPath(directory, kManifestFile), "", report.damages));
    return report;
  }
  report.manifest = *std::move(manifest);
  const std::vector<Item> items = ItemsOf(report.manifest);
  std::vector<std::vector<Damage>> damages(items.size());
  std::vector<int64_t> bytes;
  for (const Item& item : items) bytes.push_back(item.bytes);
  RETURN_IF_ERROR(ForEachItem(bytes, options, [&](size_t i) {
    const std::string path = JoinPath(directory, items[i].file->name);
    if (!items[i].boxes.empty()) return VerifyBoxes(path, items[i].boxes, damages[i]);
    return Note(OpenStoredFile(directory, report.manifest, *items[i].file).status(), path, "",
                damages[i]);
  }));
  for (const std::vector<Damage>& found : damages) {
    report.damages.insert(report.damages.end(), found.begin(), found.end());
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
