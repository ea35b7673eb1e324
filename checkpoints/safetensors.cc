#include "checkpoints/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <optional>

#include "checkpoints/strict_json.h"
#include "core/status_macros.h"
#include "core/strings.h"

namespace lt2 {
namespace {

using Json = nlohmann::json;

constexpr char kMetadata[] = "__metadata__";
constexpr int64_t kLengthBytes = 8;
constexpr int64_t kMostHeader = 100'000'000;  // what the format's own library reads
constexpr int64_t kAlignment = 8;             // of the data in the file

struct TypeSize {
  std::string_view name;
  int bits;  // of an element
};
constexpr TypeSize kTypes[] = {
    {"F64", 64},    {"F32", 32},    {"BF16", 16},   {"F16", 16},    {"I64", 64},
    {"I32", 32},    {"I16", 16},    {"I8", 8},      {"U64", 64},    {"U32", 32},
    {"U16", 16},    {"U8", 8},      {"BOOL", 8},    {"C64", 64},    {"F8_E4M3", 8},
    {"F8_E5M2", 8}, {"F8_E8M0", 8}, {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F4", 4},
};

// 0: not known.
int BitsOf(std::string_view dtype) {
  for (const TypeSize& type : kTypes) {
    if (type.name == dtype) return type.bits;
  }
  return 0;
}

// Of all elements; nullopt where 63 bits do not count them, or the last byte is not full.
std::optional<int64_t> BytesOf(const Shape& shape, int bits) {
  int64_t all = bits;
  bool empty = false;
  for (const int64_t extent : shape) {
    empty |= extent == 0;
    if (__builtin_mul_overflow(all, std::max<int64_t>(1, extent), &all)) return std::nullopt;
  }
  if (empty) return 0;
  if (all % 8 != 0) return std::nullopt;
  return all / 8;
}

// One entry of the header, its offset still in the data.
absl::StatusOr<SafeTensor> TensorFromJson(const std::string& name, const Json& json,
                                          int64_t data_bytes) {
  SafeTensor tensor{.name = name, .dtype = json.at("dtype"), .shape = {}};
  const int bits = BitsOf(tensor.dtype);
  if (bits == 0) {
    return absl::InvalidArgumentError(
        StrCat(name, ": dtype '", tensor.dtype, "' is not known to this program"));
  }
  const Json& extents = json.at("shape");
  if (!extents.is_array()) throw std::runtime_error("a shape is a list");
  if (extents.size() > size_t{Shape::kMaxRank}) {
    return absl::InvalidArgumentError(StrCat(name, ": rank ", extents.size(), ", tensors have ",
                                             Shape::kMaxRank, " at most here"));
  }
  for (const Json& extent : extents) tensor.shape.push_back(CountFromJson(extent));
  const std::optional<int64_t> bytes = BytesOf(tensor.shape, bits);
  if (!bytes) {
    return absl::DataLossError(StrCat(name, ": ", tensor.dtype, " ", tensor.shape.ToString(),
                                      " is too large, or no whole number of bytes"));
  }
  const Json& offsets = json.at("data_offsets");
  if (!offsets.is_array() || offsets.size() != 2) {
    throw std::runtime_error("data_offsets are two numbers");
  }
  const int64_t begin = CountFromJson(offsets[0]), end = CountFromJson(offsets[1]);
  if (begin > end || end > data_bytes || end - begin != *bytes) {
    return absl::DataLossError(StrCat(name, ": ", tensor.dtype, " ", tensor.shape.ToString(),
                                      " takes ", *bytes, " bytes, data_offsets are ", begin,
                                      " and ", end, " of ", data_bytes));
  }
  tensor.offset = begin;
  tensor.bytes = *bytes;
  return tensor;
}

// OK if the tensors, in order of their offsets, fill the data one after another.
absl::Status CheckFilled(const std::vector<SafeTensor>& tensors, int64_t data_bytes) {
  int64_t at = 0;
  for (const SafeTensor& tensor : tensors) {
    if (tensor.offset != at) {
      return absl::DataLossError(StrCat(tensor.name, ": begins at byte ", tensor.offset,
                                        " of the data, the tensors before it end at ", at));
    }
    at += tensor.bytes;
  }
  if (at != data_bytes) {
    return absl::DataLossError(
        StrCat("the tensors end at byte ", at, " of the data, which has ", data_bytes));
  }
  return absl::OkStatus();
}

absl::StatusOr<SafetensorsHeader> HeaderFromJson(const Json& json, int64_t data_bytes) {
  if (!json.is_object()) throw std::runtime_error("the header is no object");
  SafetensorsHeader header;
  for (const auto& [name, entry] : json.items()) {
    if (name == kMetadata) {
      header.metadata = entry.get<std::map<std::string, std::string>>();
      continue;
    }
    try {
      ASSIGN_OR_RETURN(SafeTensor tensor, TensorFromJson(name, entry, data_bytes));
      header.tensors.push_back(std::move(tensor));
    } catch (const std::exception& error) {
      return absl::DataLossError(StrCat(name, ": ", error.what()));
    }
  }
  std::sort(header.tensors.begin(), header.tensors.end(),
            [](const SafeTensor& a, const SafeTensor& b) {
              return std::pair(a.offset, a.bytes) < std::pair(b.offset, b.bytes);
            });
  RETURN_IF_ERROR(CheckFilled(header.tensors, data_bytes));
  return header;
}

// The bytes of a length as the format wants them.
std::string LittleEndian(uint64_t value) {
  static_assert(std::endian::native == std::endian::little);
  std::string bytes(sizeof(value), '\0');
  std::memcpy(bytes.data(), &value, sizeof(value));
  return bytes;
}

}  // namespace

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(std::string_view json, int64_t data_bytes,
                                                         const std::string& source) {
  absl::StatusOr<SafetensorsHeader> header;
  try {
    header = HeaderFromJson(ParseStrictly(json), data_bytes);
  } catch (const std::exception& error) {
    header = absl::DataLossError(StrCat("the header: ", error.what()));
  }
  if (!header.ok()) {
    return absl::Status(header.status().code(), StrCat(source, ": ", header.status().message()));
  }
  const int64_t data = kLengthBytes + static_cast<int64_t>(json.size());
  for (SafeTensor& tensor : header->tensors) tensor.offset += data;
  return header;
}

absl::StatusOr<SafetensorsHeader> ReadSafetensorsHeader(const ByteFile& file) {
  std::array<std::byte, kLengthBytes> length;
  RETURN_IF_ERROR(file.Read(0, length));
  uint64_t bytes = 0;
  std::memcpy(&bytes, length.data(), sizeof(bytes));
  const int64_t behind = file.size() - kLengthBytes;
  if (bytes > uint64_t{kMostHeader} || static_cast<int64_t>(bytes) > behind) {
    return absl::DataLossError(StrCat(file.path(), ": a header of ", bytes, " bytes, of ", behind,
                                      " in the file and ", kMostHeader,
                                      " allowed: no safetensors file, or one cut short"));
  }
  std::string json(bytes, '\0');
  RETURN_IF_ERROR(file.Read(kLengthBytes, std::as_writable_bytes(std::span(json))));
  return ParseSafetensorsHeader(json, behind - static_cast<int64_t>(bytes), file.path());
}

std::string LayOutSafetensors(SafetensorsHeader& header) {
  std::vector<SafeTensor>& tensors = header.tensors;
  std::sort(tensors.begin(), tensors.end(), [](const SafeTensor& a, const SafeTensor& b) {
    return std::pair(-BitsOf(a.dtype), a.name) < std::pair(-BitsOf(b.dtype), b.name);
  });
  Json json = {{kMetadata, header.metadata}};
  int64_t at = 0;
  for (SafeTensor& tensor : tensors) {
    json[tensor.name] = {{"dtype", tensor.dtype},
                         {"shape", std::vector<int64_t>(tensor.shape.begin(), tensor.shape.end())},
                         {"data_offsets", {at, at + tensor.bytes}}};
    tensor.offset = at;
    at += tensor.bytes;
  }
  std::string text = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  text.append((kAlignment - text.size() % kAlignment) % kAlignment, ' ');
  for (SafeTensor& tensor : tensors) {
    tensor.offset += kLengthBytes + static_cast<int64_t>(text.size());
  }
  return LittleEndian(text.size()) + text;
}

absl::StatusOr<std::map<std::string, std::string>> ParseSafetensorsIndex(
    std::string_view json, const std::string& source) {
  try {
    const Json index = ParseStrictly(json);
    std::map<std::string, std::string> file_of = index.at("weight_map");
    for (const auto& [tensor, file] : file_of) {
      if (IsPlainName(file)) continue;
      return absl::DataLossError(
          StrCat(source, ": ", tensor, ": '", file, "' is no name of a file beside it"));
    }
    return file_of;
  } catch (const std::exception& error) {
    return absl::DataLossError(StrCat(source, ": ", error.what()));
  }
}

std::string SafetensorsIndex(const std::map<std::string, std::string>& file_of, int64_t bytes) {
  const Json json = {{"metadata", {{"total_size", bytes}}}, {"weight_map", file_of}};
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace lt2
