// Typed reading of TOML: every mistake is collected and reported together, with file and line.
//
//   ConfigTable root = *ConfigTable::ParseFile("run.toml");
//   ConfigTable model = root.Table("model");
//   int64_t width = 0;
//   model.Read("width", &width);            // absent: width stays; wrong type: noted
//   RETURN_IF_ERROR(root.Finish());         // unknown keys (nobody read them), wrong types,
//   AddError
//
// A ConfigTable is a handle: copies share what has been read and what went wrong.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lt2 {

class ConfigTable {
 public:
  ConfigTable();  // an empty table

  // InvalidArgument with "source:line: what" if the text is not TOML; NotFound if there is no file.
  static absl::StatusOr<ConfigTable> Parse(std::string_view text, std::string_view source);
  static absl::StatusOr<ConfigTable> ParseFile(const std::string& path);

  // "section.key=value", the value in TOML; a bare word is a string. The last one wins.
  absl::Status Override(std::string_view assignment);

  bool Has(std::string_view key) const;
  // Leaves *value as it is where the key is absent. An integer is accepted for a double.
  void Read(std::string_view key, bool* value) const;
  void Read(std::string_view key, int64_t* value) const;
  void Read(std::string_view key, double* value) const;
  void Read(std::string_view key, std::string* value) const;
  void Read(std::string_view key, std::vector<int64_t>* value) const;
  void Read(std::string_view key, std::vector<double>* value) const;
  void Read(std::string_view key, std::vector<std::string>* value) const;
  // A string, or the text of a number or a boolean; false where absent or of another type.
  bool ReadScalar(std::string_view key, std::string* text) const;
  bool IsList(std::string_view key) const;  // for options that are one value or a list
  // A string that must be one of `allowed`; returns its index, or `fallback` where absent or wrong.
  int ReadChoice(std::string_view key, const std::vector<std::string>& allowed, int fallback) const;
  // A sub-table (empty where absent), and an array of tables.
  ConfigTable Table(std::string_view key) const;
  std::vector<ConfigTable> Tables(std::string_view key) const;
  // Counts the key as known without reading it; a table with all that is in it.
  void Accept(std::string_view key) const;

  // Notes "source:line: section.key: message", the first mistake of a key only.
  void AddError(std::string_view key, std::string_view message) const;
  // Whether a mistake of this key has been noted.
  bool Wrong(std::string_view key) const;
  // OK, or InvalidArgument listing every error and every unknown key with the nearest known name.
  absl::Status Finish() const;

  // Sets a value for writing the resolved configuration.
  void Set(std::string_view key, bool value);
  void Set(std::string_view key, int64_t value);
  void Set(std::string_view key, double value);
  void Set(std::string_view key, std::string_view value);
  void Set(std::string_view key, const std::vector<std::string>& value);
  void Set(std::string_view key, const std::vector<int64_t>& value);
  void Set(std::string_view key, const std::vector<double>& value);
  void SetTable(std::string_view key, const ConfigTable& table);
  void SetTables(std::string_view key, const std::vector<ConfigTable>& tables);
  // Entries of `defaults` for every key, at any depth, that this table lacks (presets).
  void MergeDefaults(const ConfigTable& defaults);

  std::string ToToml() const;
  // Where the table came from: the file's path, or what Parse was told.
  const std::string& source() const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

// The name in `known` closest to `name` by edit distance, or "" if none is near.
std::string NearestName(std::string_view name, const std::vector<std::string>& known);

}  // namespace lt2
