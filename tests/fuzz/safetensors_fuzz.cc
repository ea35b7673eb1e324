// safetensors: a file, its header with the length and data that fit it, an index. Refused, or every
// tensor lies in the data, they fill it, and what is written of them reads the same.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "checkpoints/safetensors_model.h"
#include "core/check.h"
#include "tests/fuzz/input_file.h"

namespace lt2 {
namespace {

using Json = nlohmann::json;

void ExpectRefusal(const absl::Status& status) {
  CHECK(absl::IsDataLoss(status) || absl::IsInvalidArgument(status)) << status;
  CHECK(!status.message().empty());
}

void ReadFile(const uint8_t* data, size_t size) {
  const InputFile file(data, size);
  const auto model = SafetensorsModel::Open(file.path());
  if (!model.ok()) return ExpectRefusal(model.status());
  for (const auto& [name, tensor] : model->tensors()) {
    std::vector<std::byte> bytes(tensor.bytes);
    CHECK(model->Read(name, 0, bytes).ok()) << name;
  }
}

// A fuzzer does not find how much data a header wants.
int64_t DataWantedBy(std::string_view header) {
  const Json json = Json::parse(header, nullptr, /*allow_exceptions=*/false);
  int64_t bytes = 0;
  if (!json.is_object()) return bytes;
  for (const auto& [name, entry] : json.items()) {
    if (!entry.is_object() || !entry.contains("data_offsets")) continue;
    const Json& offsets = entry["data_offsets"];
    if (offsets.size() != 2 || !offsets.is_array() || !offsets[1].is_number_unsigned()) continue;
    const uint64_t end = offsets[1];
    bytes = std::max(bytes, static_cast<int64_t>(std::min<uint64_t>(end, uint64_t{1} << 62)));
  }
  return bytes;
}

void ReadHeader(std::string_view text) {
  const int64_t bytes = DataWantedBy(text);
  auto header = ParseSafetensorsHeader(text, bytes, "fuzz.safetensors");
  if (!header.ok()) return ExpectRefusal(header.status());
  int64_t filled = 8 + static_cast<int64_t>(text.size());
  for (const SafeTensor& tensor : header->tensors) {
    CHECK_EQ(tensor.offset, filled) << tensor.name;
    CHECK_GE(tensor.bytes, 0) << tensor.name;
    CHECK_GE(tensor.shape.size(), 0) << tensor.name;
    filled += tensor.bytes;
  }
  CHECK_EQ(filled, 8 + static_cast<int64_t>(text.size()) + bytes);
  const std::string written = LayOutSafetensors(*header);
  const auto again = ParseSafetensorsHeader(std::string_view(written).substr(8), bytes, "again");
  CHECK(again.ok()) << again.status();
  CHECK(again->metadata == header->metadata);
  CHECK_EQ(again->tensors.size(), header->tensors.size());
}

}  // namespace
}  // namespace lt2

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  lt2::ReadFile(data, size);
  lt2::ReadHeader(text);
  lt2::ReadHeader(text.substr(std::min<size_t>(8, size)));
  const auto index = lt2::ParseSafetensorsIndex(text, "fuzz.index.json");
  if (!index.ok()) lt2::ExpectRefusal(index.status());
  return 0;
}
