#include "checkpoints/manifest.h"

#include <algorithm>
#include <optional>
#include <set>

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
  const auto extents = json.get<std::vector<int64_t>>();
  if (extents.size() > Shape::kMaxRank) throw std::runtime_error("a shape has too many extents");
  Shape shape;
  for (int64_t extent : extents) {
    if (extent < 0) throw std::runtime_error("a shape has a negative extent");
    shape.push_back(extent);
  }
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
  file = {.name = json.at("name"), .bytes = json.at("bytes"), .frame = json.at("frame")};
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
                            .offset = box.at("offset"),
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
          .step = json.at("step"),
          .tokens = json.at("tokens"),
          .samples = json.at("data").at("samples"),
          .data = json.at("data").at("fingerprint"),
          .tokenizer = json.at("tokenizer").at("name"),
          .tokenizer_hash = json.at("tokenizer").at("hash"),
          .seed = json.at("seed"),
          .config = json.at("config"),
          .mesh = json.at("mesh").at("axes"),
          .ranks = json.at("mesh").at("ranks"),
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

bool Lists(const Manifest& manifest, const std::string& file) {
  return std::any_of(manifest.files.begin(), manifest.files.end(),
                     [&](const StoredFile& stored) { return stored.name == file; });
}

absl::Status CheckTensors(const Manifest& manifest, const std::string& source) {
  std::set<std::string> paths;
  for (const StoredTensor& tensor : manifest.tensors) {
    if (!paths.insert(tensor.path()).second) {
      return absl::DataLossError(StrCat(source, ": ", tensor.path(), " is listed twice"));
    }
    if (absl::Status tiling = CheckTiling(tensor); !tiling.ok()) {
      return absl::DataLossError(StrCat(source, ": ", tiling.message()));
    }
    for (const StoredBox& stored : tensor.boxes) {
      if (Lists(manifest, stored.file)) continue;
      return absl::DataLossError(StrCat(source, ": ", tensor.path(), " lies in ", stored.file,
                                        ", which is not listed under files"));
    }
  }
  return absl::OkStatus();
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
    const Json json = Json::parse(text);
    const int format = json.at("format");
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
    RETURN_IF_ERROR(CheckTensors(manifest, source));
    return manifest;
  } catch (const std::exception& error) {
    return absl::DataLossError(StrCat(source, ": ", error.what()));
  }
}

absl::StatusOr<Manifest> ReadManifest(const std::string& directory) {
  const std::string path = JoinPath(directory, kManifestFile);
  FileSystem& files = FileSystem::Get();
  const absl::StatusOr<std::string> text = files.ReadFile(path);
  if (absl::IsNotFound(text.status()) && files.IsDirectory(directory)) {
    return absl::DataLossError(StrCat(path, ": a file of this checkpoint is missing"));
  }
  RETURN_IF_ERROR(text.status());
  return ParseManifest(*text, path);
}

absl::Status CheckTiling(const StoredTensor& tensor) {
  const auto fail = [&](auto... what) {
    return absl::DataLossError(StrCat(tensor.path(), " ", tensor.shape.ToString(), ": ", what...));
  };
  int64_t covered = 0;
  for (size_t i = 0; i < tensor.boxes.size(); ++i) {
    const Box& box = tensor.boxes[i].box;
    if (box.begin.rank() != tensor.shape.rank() || box.extent.rank() != tensor.shape.rank() ||
        Intersect(box, Box::Whole(tensor.shape)) != box) {
      return fail("box ", box.ToString(), " reaches beyond it");
    }
    for (size_t j = 0; j < i; ++j) {
      if (!Intersect(box, tensor.boxes[j].box)) continue;
      return fail("boxes ", tensor.boxes[j].box.ToString(), " and ", box.ToString(), " overlap");
    }
    covered += box.size();
  }
  if (covered != tensor.shape.size()) {
    return fail("only ", covered, " of ", tensor.shape.size(), " elements are stored");
  }
  return absl::OkStatus();
}

}  // namespace lt2
