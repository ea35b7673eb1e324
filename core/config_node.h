// The tree behind ConfigTable: TOML values with the place each came from. Internal to core/config.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"

namespace lt2::config {

struct Entry;
struct Node;

struct OtherValue {  // a date or a time, kept as its text
  std::string text;
};
using Array = std::vector<Entry>;
using Value =
    std::variant<bool, int64_t, double, std::string, OtherValue, Array, std::shared_ptr<Node>>;

struct Entry {
  Value value;
  std::string where;  // "run.toml:12", or the --set that gave it
};

struct Node {
  std::vector<std::pair<std::string, Entry>> entries;  // in the order written
  std::vector<std::string> known;                      // names somebody has asked for
  std::vector<std::string> wrong;                      // keys with a mistake noted
  bool opened = false;                                 // read by name, not accepted as a whole
  std::string path;                                    // "model.gdn", "" for the root
  std::string where;
  // What went wrong anywhere in the document; shared by all its nodes.
  std::shared_ptr<std::vector<std::string>> errors;

  Entry* Find(std::string_view key);
  void Put(std::string_view key, Entry entry);  // replaces, or appends
  std::string PathOf(std::string_view key) const;
};

// An empty node below `parent`, sharing its errors; at the root without one.
std::shared_ptr<Node> NewNode(const Node* parent, std::string_view key, std::string_view where);

// A deep copy that lives at parent.key.
Entry CloneInto(const Entry& entry, const Node& parent, std::string_view key);

// "an integer", "a list of strings", …: for messages.
std::string Describe(const Value& value);

// A boolean, integer, number or string; and its TOML text.
bool IsScalar(const Value& value);
std::string ScalarText(const Value& value);

// InvalidArgument with "source:line: what" if the text is not TOML.
constexpr int kMostParts = 32;  // of a key
absl::StatusOr<std::shared_ptr<Node>> ParseToml(std::string_view text, std::string_view source);

// Text that parses back to the same tree: values first, then [sections]; doubles read back exactly.
std::string WriteToml(const Node& node);

}  // namespace lt2::config
