#include "checkpoints/manifest.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "checkpoints/strict_json.h"
#include "core/file.h"
#include "core/hash.h"
#include "core/status_macros.h"
#include "core/strings.h"

namespace lt2 {
namespace {

using Json = nlohmann::json;

Json ShapeToJson(const Shape& shape) {
  return Json(std::vector<int64_t>(shape.begin(), shape.end()));
}

Shape ShapeFromJson(const Json& json) {
  if (!json.is_array() || json.empty() || json.size() > Shape::kMaxRank) {
    throw std::runtime_error("a shape has one to five extents");
  }
  Shape shape;
  for (const Json& extent : json) shape.push_back(CountFromJson(extent));
  return shape;
}

DType DTypeFromName(const std::string& name) {
  for (DType dtype : {DType::kF64, DType::kF32, DType::kBF16, DType::kI32, DType::kU8}) {
    if (name == Name(dtype)) return dtype;
  }
  throw std::runtime_error("unknown dtype \"" + name + "\"");
}

}  // namespace

void to_json(Json& json, const StoredFile& file) {
  json = {{"name", file.name}, {"bytes", file.bytes}, {"frame", file.frame}};
}

void from_json(const Json& json, StoredFile& file) {
  file = {
      .name = json.at("name"), .bytes = CountFromJson(json.at("bytes")), .frame = json.at("frame")};
}

void to_json(Json& json, const StoredTensor& tensor) {
  Json boxes = Json::array();
  for (const StoredBox& stored : tensor.boxes) {
    boxes.push_back({{"file", stored.file},
                     {"dataset", stored.dataset},
                     {"offset", stored.offset},
                     {"begin", ShapeToJson(stored.box.begin)},
                     {"extent", ShapeToJson(stored.box.extent)},
                     {"hash", stored.hash}});
  }
  json = {{"group", tensor.group},
          {"name", tensor.name},
          {"dtype", Name(tensor.dtype)},
          {"shape", ShapeToJson(tensor.shape)},
          {"boxes", std::move(boxes)}};
}

void from_json(const Json& json, StoredTensor& tensor) {
  tensor = {.group = json.at("group"),
            .name = json.at("name"),
            .dtype = DTypeFromName(json.at("dtype")),
            .shape = ShapeFromJson(json.at("shape")),
            .boxes = {}};
  for (const Json& box : json.at("boxes")) {
    tensor.boxes.push_back({.file = box.at("file"),
                            .dataset = box.at("dataset"),
                            .offset = CountFromJson(box.at("offset")),
                            .box = {.begin = ShapeFromJson(box.at("begin")),
                                    .extent = ShapeFromJson(box.at("extent"))},
                            .hash = box.at("hash")});
  }
}

namespace {

Json InfoToJson(const CheckpointInfo& info) {
  return {{"id", info.id},
          {"step", info.step},
          {"tokens", info.tokens},
          {"data", {{"samples", info.samples}, {"fingerprint", info.data}}},
          {"tokenizer", {{"name", info.tokenizer}, {"hash", info.tokenizer_hash}}},
          {"seed", info.seed},
          {"config", info.config},
          {"mesh", {{"axes", info.mesh}, {"ranks", info.ranks}}},
          {"code", info.code},
          {"extra", info.extra}};
}

CheckpointInfo InfoFromJson(const Json& json) {
  return {.id = json.at("id"),
          .step = CountFromJson(json.at("step")),
          .tokens = CountFromJson(json.at("tokens")),
          .samples = CountFromJson(json.at("data").at("samples")),
          .data = json.at("data").at("fingerprint"),
          .tokenizer = json.at("tokenizer").at("name"),
          .tokenizer_hash = json.at("tokenizer").at("hash"),
          .seed = UnsignedFromJson(json.at("seed")),
          .config = json.at("config"),
          .mesh = json.at("mesh").at("axes"),
          .ranks = static_cast<int>(CountFromJson(json.at("mesh").at("ranks"))),
          .code = json.at("code"),
          .extra = json.at("extra")};
}

// Text that is not UTF-8 (a path in a configuration) must not cost the checkpoint.
std::string Print(const Json& json, int indent) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

// Of everything but the hash itself, in the one form nlohmann prints it: keys sorted, no spaces.
std::string SelfHash(Json json) {
  json.erase("hash");
  const std::string text = Print(json, -1);
  return Hash128(std::as_bytes(std::span(text)));
}

using BytesByFile = std::map<std::string, int64_t>;

// Every file by name, which names one beside the manifest.
absl::StatusOr<BytesByFile> CheckFiles(const Manifest& manifest) {
  BytesByFile bytes;
  for (const StoredFile& file : manifest.files) {
    if (!IsPlainName(file.name)) {
      return absl::DataLossError(StrCat("'", file.name, "' is no name of a file"));
    }
    if (!bytes.emplace(file.name, file.bytes).second) {
      return absl::DataLossError(StrCat(file.name, " is listed twice"));
    }
  }
  return bytes;
}

// Whether the bytes of all elements, and so every count and offset among them, fit 64 bits.
bool SizeFits(const StoredTensor& tensor) {
  int64_t bytes = SizeOf(tensor.dtype);
  for (const int64_t extent : tensor.shape) {
    if (__builtin_mul_overflow(bytes, std::max<int64_t>(1, extent), &bytes)) return false;
  }
  return true;
}

absl::Status CheckTensor(const StoredTensor& tensor, const BytesByFile& files) {
  if (!SizeFits(tensor)) {
    return absl::DataLossError(
        StrCat(tensor.path(), " ", tensor.shape.ToString(), " is too large"));
  }
  RETURN_IF_ERROR(CheckTiling(tensor));
  for (const StoredBox& stored : tensor.boxes) {
    const auto file = files.find(stored.file);
    if (file == files.end()) {
      return absl::DataLossError(
          StrCat(tensor.path(), " lies in ", stored.file, ", which is not listed under files"));
    }
    if (stored.offset > file->second - stored.box.size() * SizeOf(tensor.dtype)) {
      return absl::DataLossError(StrCat(tensor.path(), " ", stored.box.ToString(), " at byte ",
                                        stored.offset, " reaches beyond the end of ", stored.file));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckContent(const Manifest& manifest) {
  ASSIGN_OR_RETURN(const BytesByFile files, CheckFiles(manifest));
  std::set<std::string> paths;
  for (const StoredTensor& tensor : manifest.tensors) {
    if (!paths.insert(tensor.path()).second) {
      return absl::DataLossError(StrCat(tensor.path(), " is listed twice"));
    }
    RETURN_IF_ERROR(CheckTensor(tensor, files));
  }
  return absl::OkStatus();
}

// Whether the box has elements and lies in the shape.
bool LiesIn(const Box& box, const Shape& shape) {
  if (box.begin.rank() != shape.rank() || box.extent.rank() != shape.rank()) return false;
  for (int i = 0; i < shape.rank(); ++i) {
    const int64_t begin = box.begin[i], extent = box.extent[i];
    if (begin < 0 || extent < 1 || begin > shape[i] || extent > shape[i] - begin) return false;
  }
  return true;
}

}  // namespace

const StoredTensor* Manifest::Find(std::string_view path) const {
  for (const StoredTensor& tensor : tensors) {
    if (path.size() == tensor.group.size() + 1 + tensor.name.size() &&
        path.starts_with(tensor.group) && path[tensor.group.size()] == '/' &&
        path.ends_with(tensor.name)) {
      return &tensor;
    }
  }
  return nullptr;
}

int64_t Manifest::bytes() const {
  int64_t sum = 0;
  for (const StoredFile& file : files) sum += file.bytes;
  return sum;
}

std::vector<std::pair<const StoredTensor*, const StoredBox*>> Manifest::BoxesOf(
    std::string_view file) const {
  std::vector<std::pair<const StoredTensor*, const StoredBox*>> found;
  for (const StoredTensor& tensor : tensors) {
    for (const StoredBox& stored : tensor.boxes) {
      if (stored.file == file) found.emplace_back(&tensor, &stored);
    }
  }
  std::sort(found.begin(), found.end(),
            [](const auto& a, const auto& b) { return a.second->offset < b.second->offset; });
  return found;
}

std::string ToJson(const Manifest& manifest) {
  Json json = InfoToJson(manifest.info);
  json["format"] = kCheckpointFormat;
  json["files"] = manifest.files;
  json["tensors"] = manifest.tensors;
  json["hash"] = SelfHash(json);
  return Print(json, 1) + "\n";
}

absl::StatusOr<Manifest> ParseManifest(std::string_view text, const std::string& source) {
  try {
    const Json json = ParseStrictly(text);
    const int64_t format = CountFromJson(json.at("format"));
    if (format > kCheckpointFormat) {
      return absl::InvalidArgumentError(StrCat(source, ": checkpoint format ", format,
                                               " is newer than this program's ", kCheckpointFormat,
                                               "; use the program that wrote it, or a newer one"));
    }
    if (json.at("hash").get<std::string>() != SelfHash(json)) {
      return absl::DataLossError(
          StrCat(source, ": does not match its own hash: changed since it was written"));
    }
    Manifest manifest{
        .info = InfoFromJson(json), .files = json.at("files"), .tensors = json.at("tensors")};
    if (const absl::Status content = CheckContent(manifest); !content.ok()) {
      return absl::DataLossError(StrCat(source, ": ", content.message()));
    }
    return manifest;
  } catch (const std::exception& error) {
    return absl::DataLossError(StrCat(source, ": ", error.what()));
  }
}

absl::StatusOr<std::string> ReadManifestText(const std::string& directory) {
  const std::string path = JoinPath(directory, kManifestFile);
  FileSystem& files = FileSystem::Get();
  absl::StatusOr<std::string> text = files.ReadFile(path);
  if (absl::IsNotFound(text.status()) && files.IsDirectory(directory)) {
    return absl::DataLossError(StrCat(path, ": a file of this checkpoint is missing"));
  }
  return text;
}

absl::StatusOr<Manifest> ReadManifest(const std::string& directory) {
  ASSIGN_OR_RETURN(const std::string text, ReadManifestText(directory));
  return ParseManifest(text, JoinPath(directory, kManifestFile));
}

absl::Status CheckTiling(const StoredTensor& tensor) {
  const auto fail = [&](auto... what) {
    return absl::DataLossError(StrCat(tensor.path(), " ", tensor.shape.ToString(), ": ", what...));
  };
  int64_t covered = 0;
  std::vector<const Box*> boxes;
  for (const StoredBox& stored : tensor.boxes) {
    if (!LiesIn(stored.box, tensor.shape)) {
      return fail("box ", stored.box.ToString(), " reaches beyond it");
    }
    boxes.push_back(&stored.box);
  }
  // Those that share no row with a box need not be held against it.
  std::sort(boxes.begin(), boxes.end(),
            [](const Box* a, const Box* b) { return a->begin[0] < b->begin[0]; });
  for (size_t i = 0; i < boxes.size(); ++i) {
    const int64_t end = boxes[i]->begin[0] + boxes[i]->extent[0];
    for (size_t j = i + 1; j < boxes.size() && boxes[j]->begin[0] < end; ++j) {
      if (!Intersect(*boxes[i], *boxes[j])) continue;
      return fail("boxes ", boxes[i]->ToString(), " and ", boxes[j]->ToString(), " overlap");
    }
    covered += boxes[i]->size();
  }
  if (covered != tensor.shape.size()) {
    return fail("only ", covered, " of ", tensor.shape.size(), " elements are stored");
  }
  return absl::OkStatus();
}

}  // namespace lt2
