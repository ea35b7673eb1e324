// manifest.json: whatever it says, it is refused, or it tiles its tensors and prints as it was
// read.
#include <nlohmann/json.hpp>

#include "checkpoints/manifest.h"
#include "core/check.h"
#include "core/hash.h"

namespace {

using Json = nlohmann::json;

// A fuzzer does not find the hash of the text it made.
std::string WithItsHash(std::string_view text) {
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return "";
  json.erase("hash");
  const std::string plain = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  json["hash"] = lt2::Hash128(std::as_bytes(std::span(plain)));
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void Read(std::string_view text) {
  const auto manifest = lt2::ParseManifest(text, "manifest.json");
  if (!manifest.ok()) {
    CHECK(absl::IsDataLoss(manifest.status()) || absl::IsInvalidArgument(manifest.status()));
    return;
  }
  for (const lt2::StoredTensor& tensor : manifest->tensors) {
    int64_t elements = 0;
    for (const lt2::StoredBox& stored : tensor.boxes) elements += stored.box.size();
    CHECK_EQ(elements, tensor.shape.size());
    CHECK_GE(tensor.bytes(), 0);
    CHECK(manifest->Find(tensor.path()) != nullptr);
  }
  for (const lt2::StoredFile& file : manifest->files) {
    for (const auto& [tensor, stored] : manifest->BoxesOf(file.name)) {
      CHECK_LE(stored->offset + stored->box.size() * SizeOf(tensor->dtype), file.bytes);
    }
  }
  const std::string printed = ToJson(*manifest);
  const auto again = lt2::ParseManifest(printed, "manifest.json");
  CHECK(again.ok()) << again.status();
  CHECK(ToJson(*again) == printed);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  Read(text);
  Read(WithItsHash(text));
  return 0;
}
