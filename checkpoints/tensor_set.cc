#include "checkpoints/tensor_set.h"

#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "core/strings.h"

namespace lt2 {
namespace {

using ShapeByPath = std::map<std::string, std::string>;  // of tensors, in text

// A line for each tensor: its path, a tab, its shape.
std::string Describe(std::span<const TensorPiece> pieces) {
  std::string lines;
  for (const TensorPiece& piece : pieces) {
    if (piece.shape.size() == 0) continue;  // such are not stored
    StrAppend(&lines, piece.path(), "\t", piece.shape.ToString(), "\n");
  }
  return lines;
}

ShapeByPath HeldByAll(std::span<const TensorPiece> pieces, Communicator& world) {
  ShapeByPath held;
  for (const std::string& lines : world.GatherStrings(Describe(pieces))) {
    std::istringstream stream(lines);
    std::string path, shape;
    while (std::getline(stream, path, '\t') && std::getline(stream, shape)) held[path] = shape;
  }
  return held;
}

ShapeByPath StoredOf(const Manifest& manifest, std::string_view group) {
  ShapeByPath stored;
  for (const StoredTensor& tensor : manifest.tensors) {
    if (group.empty() || tensor.group == group) stored[tensor.path()] = tensor.shape.ToString();
  }
  return stored;
}

// "\n  WHAT: N tensors: a, b, c, …", "" if there is none.
std::string Row(std::string_view what, const std::vector<std::string>& names) {
  constexpr size_t kShown = 4;
  if (names.empty()) return "";
  std::string row = StrCat("\n  ", what, ": ", names.size(), " tensors: ");
  for (size_t i = 0; i < names.size() && i < kShown; ++i) {
    StrAppend(&row, i == 0 ? "" : ", ", names[i]);
  }
  return names.size() > kShown ? row + ", …" : row;
}

}  // namespace

absl::Status CheckSameTensors(const Manifest& manifest, std::span<const TensorPiece> pieces,
                              std::string_view group, Communicator& world) {
  const ShapeByPath held = HeldByAll(pieces, world), stored = StoredOf(manifest, group);
  std::vector<std::string> extra, missing, reshaped;
  for (const auto& [path, shape] : stored) {
    const auto here = held.find(path);
    if (here == held.end()) {
      extra.push_back(path);
    } else if (here->second != shape) {
      reshaped.push_back(StrCat(path, " ", shape, " -> ", here->second));
    }
  }
  for (const auto& [path, shape] : held) {
    if (!stored.contains(path)) missing.push_back(path);
  }
  const std::string rows =
      StrCat(Row("only in the checkpoint", extra), Row("only in this run", missing),
             Row("of another shape (then -> now)", reshaped));
  return rows.empty() ? absl::OkStatus() : absl::InvalidArgumentError(rows.substr(1));
}

}  // namespace lt2
