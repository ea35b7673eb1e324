#include "core/config.h"

#include <algorithm>
#include <type_traits>

#include "absl/strings/ascii.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/check.h"
#include "core/config_node.h"
#include "core/file.h"
#include "core/status_macros.h"
#include "core/strings.h"

namespace lt2 {

using config::Array;
using config::Entry;
using config::Node;
using NodePtr = std::shared_ptr<Node>;

struct ConfigTable::Impl {
  NodePtr node;
  std::string source;
};

namespace {

Entry* FindKnown(Node& node, std::string_view key) {
  if (std::find(node.known.begin(), node.known.end(), key) == node.known.end()) {
    node.known.emplace_back(key);
  }
  return node.Find(key);
}

bool IsWrong(const Node& node, std::string_view key) {
  return std::find(node.wrong.begin(), node.wrong.end(), key) != node.wrong.end();
}

// What follows from a key's first mistake would only hide it.
void Note(Node& node, const std::string& where, std::string_view key, std::string_view message) {
  if (IsWrong(node, key)) return;
  node.wrong.emplace_back(key);
  std::string line = StrCat(where, where.empty() ? "" : ": ", node.PathOf(key), ": ", message);
  auto& errors = *node.errors;
  if (std::find(errors.begin(), errors.end(), line) == errors.end()) {
    errors.push_back(std::move(line));
  }
}

void NoteWrongType(Node& node, const Entry& entry, std::string_view key, std::string_view wanted) {
  Note(node, entry.where, key, StrCat("wants ", wanted, ", got ", config::Describe(entry.value)));
}

template <class T>
bool Convert(const Entry& entry, T* value) {
  if (auto exact = std::get_if<T>(&entry.value)) {
    *value = *exact;
    return true;
  }
  if constexpr (std::is_same_v<T, double>) {
    if (auto integer = std::get_if<int64_t>(&entry.value)) {
      *value = static_cast<double>(*integer);
      return true;
    }
  }
  return false;
}

template <class T>
bool Convert(const Entry& entry, std::vector<T>* value) {
  auto items = std::get_if<Array>(&entry.value);
  if (!items) return false;
  std::vector<T> result;
  for (const Entry& item : *items) {
    T element{};
    if (!Convert(item, &element)) return false;
    result.push_back(std::move(element));
  }
  *value = std::move(result);
  return true;
}

template <class T>
void ReadAs(Node& node, std::string_view key, std::string_view wanted, T* value) {
  Entry* entry = FindKnown(node, key);
  if (entry && !Convert(*entry, value)) NoteWrongType(node, *entry, key, wanted);
}

template <class T>
Entry ArrayEntry(const std::vector<T>& values, const std::string& where) {
  Array items;
  for (const T& value : values) items.push_back({.value = value, .where = where});
  return {.value = std::move(items), .where = where};
}

void CollectUnknown(const Node& node, std::vector<std::string>& lines) {
  for (const auto& [key, entry] : node.entries) {
    if (std::find(node.known.begin(), node.known.end(), key) == node.known.end()) {
      const std::string near = NearestName(key, node.known);
      std::string hint;
      if (!near.empty()) {
        hint = StrCat("; did you mean '", near, "'?");
      } else if (!node.known.empty()) {
        hint = StrCat("; known here: ", absl::StrJoin(node.known, ", "));
      }
      lines.push_back(StrCat(entry.where, ": ", node.PathOf(key), ": unknown key", hint));
    } else if (auto child = std::get_if<NodePtr>(&entry.value)) {
      if ((*child)->opened) CollectUnknown(**child, lines);
    } else if (auto items = std::get_if<Array>(&entry.value)) {
      for (const Entry& item : *items) {
        auto table = std::get_if<NodePtr>(&item.value);
        if (table && (*table)->opened) CollectUnknown(**table, lines);
      }
    }
  }
}

void Merge(Node& node, const Node& defaults) {
  for (const auto& [key, entry] : defaults.entries) {
    Entry* mine = node.Find(key);
    if (!mine) {
      node.Put(key, config::CloneInto(entry, node, key));
      continue;
    }
    auto mine_table = std::get_if<NodePtr>(&mine->value);
    auto default_table = std::get_if<NodePtr>(&entry.value);
    if (mine_table && default_table) Merge(**mine_table, **default_table);
  }
}

std::string Stripped(std::string_view text) {
  return std::string(absl::StripAsciiWhitespace(Piece(text)));
}

// The value of a --set: TOML, or else its text as a string.
absl::StatusOr<Entry> ParseOverride(std::string_view text, const std::string& where) {
  auto parsed = config::ParseToml(StrCat("value = ", text, "\n"), where);
  if (parsed.ok() && (*parsed)->entries.size() == 1) {
    Entry entry = (*parsed)->entries[0].second;
    entry.where = where;
    if (auto other = std::get_if<config::OtherValue>(&entry.value)) {
      std::string date = other->text;
      entry.value = std::move(date);
    }
    return entry;
  }
  if (!text.empty() && std::string_view("[{\"'").find(text[0]) != std::string_view::npos) {
    return absl::InvalidArgumentError(StrCat(where, ": the value is not TOML: ", text));
  }
  return Entry{.value = std::string(text), .where = where};
}

}  // namespace

ConfigTable::ConfigTable()
    : impl_(std::make_shared<Impl>(Impl{config::NewNode(nullptr, "", ""), ""})) {}

absl::StatusOr<ConfigTable> ConfigTable::Parse(std::string_view text, std::string_view source) {
  ConfigTable table;
  ASSIGN_OR_RETURN(table.impl_->node, config::ParseToml(text, source));
  table.impl_->source = std::string(source);
  return table;
}

absl::StatusOr<ConfigTable> ConfigTable::ParseFile(const std::string& path) {
  ASSIGN_OR_RETURN(std::string text, FileSystem::Get().ReadFile(path, kMostText));
  return Parse(text, path);
}

absl::Status ConfigTable::Override(std::string_view assignment) {
  const size_t equals = assignment.find('=');
  const std::string name = Stripped(assignment.substr(0, equals));
  const std::string where = StrCat("--set ", name);
  const std::vector<std::string> parts = absl::StrSplit(name, '.');
  if (equals == std::string_view::npos ||
      std::any_of(parts.begin(), parts.end(), [](const auto& part) { return part.empty(); })) {
    return absl::InvalidArgumentError(
        StrCat("--set ", assignment, ": wants section.key=value, such as model.loops=4"));
  }
  if (parts.size() > size_t{config::kMostParts}) {
    return absl::InvalidArgumentError(
        StrCat("--set: a key of more than ", config::kMostParts, " parts"));
  }
  ASSIGN_OR_RETURN(Entry entry, ParseOverride(Stripped(assignment.substr(equals + 1)), where));
  NodePtr node = impl_->node;
  for (size_t i = 0; i + 1 < parts.size(); ++i) {
    Entry* child = node->Find(parts[i]);
    if (!child) {
      node->Put(parts[i], {.value = config::NewNode(node.get(), parts[i], where), .where = where});
      child = node->Find(parts[i]);
    }
    auto table = std::get_if<NodePtr>(&child->value);
    if (!table) {
      return absl::InvalidArgumentError(StrCat(where, ": ", node->PathOf(parts[i]), " is ",
                                               config::Describe(child->value), ", not a section"));
    }
    node = *table;
  }
  node->Put(parts.back(), config::CloneInto(entry, *node, parts.back()));
  return absl::OkStatus();
}

bool ConfigTable::Has(std::string_view key) const { return impl_->node->Find(key) != nullptr; }

void ConfigTable::Read(std::string_view key, bool* value) const {
  ReadAs(*impl_->node, key, "true or false", value);
}
void ConfigTable::Read(std::string_view key, int64_t* value) const {
  ReadAs(*impl_->node, key, "an integer", value);
}
void ConfigTable::Read(std::string_view key, double* value) const {
  ReadAs(*impl_->node, key, "a number", value);
}
void ConfigTable::Read(std::string_view key, std::string* value) const {
  ReadAs(*impl_->node, key, "a string", value);
}
void ConfigTable::Read(std::string_view key, std::vector<int64_t>* value) const {
  ReadAs(*impl_->node, key, "a list of integers", value);
}
void ConfigTable::Read(std::string_view key, std::vector<double>* value) const {
  ReadAs(*impl_->node, key, "a list of numbers", value);
}
void ConfigTable::Read(std::string_view key, std::vector<std::string>* value) const {
  ReadAs(*impl_->node, key, "a list of strings", value);
}

bool ConfigTable::ReadScalar(std::string_view key, std::string* text) const {
  Entry* entry = FindKnown(*impl_->node, key);
  if (!entry) return false;
  auto string = std::get_if<std::string>(&entry->value);
  if (!string && !config::IsScalar(entry->value)) {
    NoteWrongType(*impl_->node, *entry, key, "a string or a number");
    return false;
  }
  *text = string ? *string : config::ScalarText(entry->value);
  return true;
}

bool ConfigTable::IsList(std::string_view key) const {
  Entry* entry = FindKnown(*impl_->node, key);
  return entry && std::holds_alternative<Array>(entry->value);
}

int ConfigTable::ReadChoice(std::string_view key, const std::vector<std::string>& allowed,
                            int fallback) const {
  Entry* entry = FindKnown(*impl_->node, key);
  if (!entry) return fallback;
  const std::string wanted = StrCat("one of \"", absl::StrJoin(allowed, "\", \""), "\"");
  auto text = std::get_if<std::string>(&entry->value);
  if (!text) {
    NoteWrongType(*impl_->node, *entry, key, wanted);
    return fallback;
  }
  const auto found = std::find(allowed.begin(), allowed.end(), *text);
  if (found != allowed.end()) return static_cast<int>(found - allowed.begin());
  const std::string near = NearestName(*text, allowed);
  Note(*impl_->node, entry->where, key,
       StrCat("wants ", wanted, ", got \"", *text, "\"",
              near.empty() ? "" : StrCat("; did you mean \"", near, "\"?")));
  return fallback;
}

ConfigTable ConfigTable::Table(std::string_view key) const {
  ConfigTable table;
  table.impl_->source = impl_->source;
  Entry* entry = FindKnown(*impl_->node, key);
  auto node = entry ? std::get_if<NodePtr>(&entry->value) : nullptr;
  if (entry && !node) NoteWrongType(*impl_->node, *entry, key, "a table");
  table.impl_->node = node ? *node : config::NewNode(impl_->node.get(), key, impl_->source);
  table.impl_->node->opened = true;
  // Its keys are not missing: that it is no table says all.
  if (entry && !node) table.impl_->node->errors = std::make_shared<std::vector<std::string>>();
  return table;
}

std::vector<ConfigTable> ConfigTable::Tables(std::string_view key) const {
  std::vector<ConfigTable> tables;
  Entry* entry = FindKnown(*impl_->node, key);
  if (!entry) return tables;
  auto items = std::get_if<Array>(&entry->value);
  const auto is_table = [](const Entry& item) {
    return std::holds_alternative<NodePtr>(item.value);
  };
  if (!items || !std::all_of(items->begin(), items->end(), is_table)) {
    NoteWrongType(*impl_->node, *entry, key, "a list of tables");
    return tables;
  }
  for (const Entry& item : *items) {
    ConfigTable& table = tables.emplace_back();
    table.impl_->source = impl_->source;
    table.impl_->node = std::get<NodePtr>(item.value);
    table.impl_->node->opened = true;
  }
  return tables;
}

void ConfigTable::Accept(std::string_view key) const {
  Entry* entry = FindKnown(*impl_->node, key);
  auto table = entry ? std::get_if<NodePtr>(&entry->value) : nullptr;
  if (table) (*table)->opened = false;
}

void ConfigTable::AddError(std::string_view key, std::string_view message) const {
  Node& node = *impl_->node;
  const Entry* entry = node.Find(key);
  Note(node, entry ? entry->where : node.where, key, message);
}

bool ConfigTable::Wrong(std::string_view key) const { return IsWrong(*impl_->node, key); }

absl::Status ConfigTable::Finish() const {
  std::vector<std::string> lines = *impl_->node->errors;
  CollectUnknown(*impl_->node, lines);
  if (lines.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrJoin(lines, "\n"));
}

void ConfigTable::Set(std::string_view key, bool value) { impl_->node->Put(key, {value, ""}); }
void ConfigTable::Set(std::string_view key, int64_t value) { impl_->node->Put(key, {value, ""}); }
void ConfigTable::Set(std::string_view key, double value) { impl_->node->Put(key, {value, ""}); }
void ConfigTable::Set(std::string_view key, std::string_view value) {
  impl_->node->Put(key, {std::string(value), ""});
}
void ConfigTable::Set(std::string_view key, const std::vector<std::string>& value) {
  impl_->node->Put(key, ArrayEntry(value, ""));
}
void ConfigTable::Set(std::string_view key, const std::vector<int64_t>& value) {
  impl_->node->Put(key, ArrayEntry(value, ""));
}
void ConfigTable::Set(std::string_view key, const std::vector<double>& value) {
  impl_->node->Put(key, ArrayEntry(value, ""));
}

void ConfigTable::SetTable(std::string_view key, const ConfigTable& table) {
  Node& node = *impl_->node;
  node.Put(key, config::CloneInto({.value = table.impl_->node, .where = ""}, node, key));
}

void ConfigTable::SetTables(std::string_view key, const std::vector<ConfigTable>& tables) {
  Array items;
  for (const ConfigTable& table : tables) items.push_back({table.impl_->node, ""});
  impl_->node->Put(key, config::CloneInto({std::move(items), ""}, *impl_->node, key));
}

void ConfigTable::MergeDefaults(const ConfigTable& defaults) {
  Merge(*impl_->node, *defaults.impl_->node);
}

std::string ConfigTable::ToToml() const { return config::WriteToml(*impl_->node); }

const std::string& ConfigTable::source() const { return impl_->source; }

namespace {

// How many letters are to be put in, taken out, replaced or swapped with their neighbour.
size_t EditsBetween(const std::string& a, const std::string& b) {
  std::vector<std::vector<size_t>> edits(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      size_t& least = edits[i][j];
      least = std::max(i, j);
      if (i == 0 || j == 0) continue;
      least = std::min(
          {edits[i - 1][j - 1] + (a[i - 1] != b[j - 1]), edits[i - 1][j] + 1, edits[i][j - 1] + 1});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) least = std::min(least, edits[i - 2][j - 2] + 1);
    }
  }
  return edits[a.size()][b.size()];
}

}  // namespace

std::string NearestName(std::string_view name, const std::vector<std::string>& known) {
  const std::string lower = absl::AsciiStrToLower(Piece(name));
  std::string best;
  size_t best_distance = std::max<size_t>(2, name.size() / 3) + 1;
  for (const std::string& candidate : known) {
    const std::string other = absl::AsciiStrToLower(candidate);
    const bool begins = lower.size() >= 3 && other.starts_with(lower);
    const size_t distance = begins ? 1 : EditsBetween(lower, other);
    // Two short names that share no letter are not near.
    if (distance < best_distance && 2 * distance <= std::max(lower.size(), other.size())) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

}  // namespace lt2
