#include "core/config_node.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <sstream>

#include "absl/strings/str_format.h"
#include "core/strings.h"

#define TOML_EXCEPTIONS 0
#include "toml++/toml.h"

namespace lt2::config {
namespace {

std::string Where(std::string_view source, const toml::source_region& region) {
  if (region.begin.line == 0) return std::string(source);
  return StrCat(source, ":", region.begin.line);
}

void FillNode(const toml::table& table, std::string_view source, Node& node);

Entry ToEntry(const toml::node& value, std::string_view source, const Node& parent,
              std::string_view key) {
  Entry entry{.value = false, .where = Where(source, value.source())};
  if (const toml::table* table = value.as_table()) {
    auto node = NewNode(&parent, key, entry.where);
    FillNode(*table, source, *node);
    entry.value = node;
  } else if (const toml::array* array = value.as_array()) {
    Array items;
    for (const toml::node& item : *array) items.push_back(ToEntry(item, source, parent, key));
    entry.value = std::move(items);
  } else if (auto boolean = value.as_boolean()) {
    entry.value = boolean->get();
  } else if (auto integer = value.as_integer()) {
    entry.value = integer->get();
  } else if (auto number = value.as_floating_point()) {
    entry.value = number->get();
  } else if (auto text = value.as_string()) {
    entry.value = text->get();
  } else {
    std::ostringstream text_of_date;
    value.visit([&](const auto& date) {
      if constexpr (toml::is_date<decltype(date)> || toml::is_time<decltype(date)> ||
                    toml::is_date_time<decltype(date)>) {
        text_of_date << date.get();
      }
    });
    entry.value = OtherValue{text_of_date.str()};
  }
  return entry;
}

// toml++ keeps keys sorted by name; we want them as the user wrote them.
void FillNode(const toml::table& table, std::string_view source, Node& node) {
  std::vector<std::pair<const toml::key*, const toml::node*>> items;
  for (const auto& [key, value] : table) items.emplace_back(&key, &value);
  std::stable_sort(items.begin(), items.end(), [](const auto& a, const auto& b) {
    const toml::source_position pa = a.first->source().begin, pb = b.first->source().begin;
    return std::pair(pa.line, pa.column) < std::pair(pb.line, pb.column);
  });
  for (const auto& [key, value] : items) {
    node.Put(key->str(), ToEntry(*value, source, node, key->str()));
  }
}

std::string DoubleText(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[64];
  const auto result = std::to_chars(buffer, buffer + sizeof(buffer), value);
  std::string text(buffer, result.ptr);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string Quoted(std::string_view text) {
  std::string quoted = "\"";
  for (unsigned char c : text) {
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += static_cast<char>(c);
    } else if (c == '\n') {
      quoted += "\\n";
    } else if (c == '\t') {
      quoted += "\\t";
    } else if (c < 0x20 || c == 0x7f) {
      quoted += absl::StrFormat("\\u%04X", static_cast<int>(c));
    } else {
      quoted += static_cast<char>(c);
    }
  }
  return quoted + "\"";
}

std::string KeyText(std::string_view key) {
  const bool bare = !key.empty() && std::all_of(key.begin(), key.end(), [](unsigned char c) {
    return std::isalnum(c) || c == '_' || c == '-';
  });
  return bare ? std::string(key) : Quoted(key);
}

std::string InlineText(const Value& value) {
  if (auto v = std::get_if<bool>(&value)) return *v ? "true" : "false";
  if (auto v = std::get_if<int64_t>(&value)) return StrCat(*v);
  if (auto v = std::get_if<double>(&value)) return DoubleText(*v);
  if (auto v = std::get_if<std::string>(&value)) return Quoted(*v);
  if (auto v = std::get_if<OtherValue>(&value)) return v->text;
  std::string text;
  if (auto items = std::get_if<Array>(&value)) {
    for (const Entry& item : *items) {
      StrAppend(&text, text.empty() ? "" : ", ", InlineText(item.value));
    }
    return StrCat("[", text, "]");
  }
  for (const auto& [key, entry] : std::get<std::shared_ptr<Node>>(value)->entries) {
    StrAppend(&text, text.empty() ? "" : ", ", KeyText(key), " = ", InlineText(entry.value));
  }
  return StrCat("{ ", text, text.empty() ? "}" : " }");
}

void WriteSection(const Node& node, const std::string& header, std::string& text) {
  const auto is_table = [](const Entry& entry) {
    return std::holds_alternative<std::shared_ptr<Node>>(entry.value);
  };
  const bool only_tables =
      !node.entries.empty() && std::all_of(node.entries.begin(), node.entries.end(),
                                           [&](const auto& item) { return is_table(item.second); });
  if (!header.empty() && !only_tables) {
    StrAppend(&text, text.empty() ? "" : "\n", "[", header, "]\n");
  }
  for (const auto& [key, entry] : node.entries) {
    if (!is_table(entry)) {
      StrAppend(&text, KeyText(key), " = ", InlineText(entry.value), "\n");
    }
  }
  for (const auto& [key, entry] : node.entries) {
    if (is_table(entry)) {
      WriteSection(*std::get<std::shared_ptr<Node>>(entry.value),
                   StrCat(header, header.empty() ? "" : ".", KeyText(key)), text);
    }
  }
}

}  // namespace

Entry* Node::Find(std::string_view key) {
  for (auto& [name, entry] : entries) {
    if (name == key) return &entry;
  }
  return nullptr;
}

void Node::Put(std::string_view key, Entry entry) {
  if (Entry* old = Find(key)) {
    *old = std::move(entry);
  } else {
    entries.emplace_back(key, std::move(entry));
  }
}

std::string Node::PathOf(std::string_view key) const {
  return path.empty() ? std::string(key) : StrCat(path, ".", key);
}

std::shared_ptr<Node> NewNode(const Node* parent, std::string_view key, std::string_view where) {
  auto node = std::make_shared<Node>();
  node->where = std::string(where);
  node->path = parent ? parent->PathOf(key) : "";
  node->errors = parent ? parent->errors : std::make_shared<std::vector<std::string>>();
  return node;
}

Entry CloneInto(const Entry& entry, const Node& parent, std::string_view key) {
  Entry copy = entry;
  if (auto items = std::get_if<Array>(&copy.value)) {
    for (Entry& item : *items) item = CloneInto(item, parent, key);
  } else if (auto table = std::get_if<std::shared_ptr<Node>>(&copy.value)) {
    auto node = NewNode(&parent, key, (*table)->where);
    for (const auto& [name, child] : (*table)->entries) {
      node->Put(name, CloneInto(child, *node, name));
    }
    copy.value = node;
  }
  return copy;
}

std::string Describe(const Value& value) {
  if (auto v = std::get_if<bool>(&value)) return *v ? "the boolean true" : "the boolean false";
  if (auto v = std::get_if<int64_t>(&value)) return StrCat("the integer ", *v);
  if (auto v = std::get_if<double>(&value)) return StrCat("the number ", DoubleText(*v));
  if (auto v = std::get_if<std::string>(&value)) return StrCat("the string ", Quoted(*v));
  if (auto v = std::get_if<OtherValue>(&value)) return StrCat("the date or time ", v->text);
  if (std::holds_alternative<Array>(value)) return StrCat("the list ", InlineText(value));
  return "a table";
}

bool IsScalar(const Value& value) {
  return std::holds_alternative<bool>(value) || std::holds_alternative<int64_t>(value) ||
         std::holds_alternative<double>(value) || std::holds_alternative<std::string>(value);
}

std::string ScalarText(const Value& value) { return InlineText(value); }

absl::StatusOr<std::shared_ptr<Node>> ParseToml(std::string_view text, std::string_view source) {
  const toml::parse_result result = toml::parse(text, source);
  if (!result) {
    const toml::parse_error& error = result.error();
    return absl::InvalidArgumentError(
        StrCat(Where(source, error.source()), ": not TOML: ", error.description()));
  }
  auto root = NewNode(nullptr, "", source);
  FillNode(result.table(), source, *root);
  return root;
}

std::string WriteToml(const Node& node) {
  std::string text;
  WriteSection(node, "", text);
  return text;
}

}  // namespace lt2::config
