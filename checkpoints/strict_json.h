// JSON from files that are not trusted. What is wrong throws std::exception: a reader catches it
// and says DataLoss with the file's name.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

namespace lt2 {

// Refuses what lies too deep for the recursive code that walks values, and objects that have a key
// twice, of which a reader would see one.
nlohmann::json ParseStrictly(std::string_view text);

// Whole numbers without sign or fraction; nothing else is taken for one.
uint64_t UnsignedFromJson(const nlohmann::json& json);
int64_t CountFromJson(const nlohmann::json& json);

// Whether a name that a file gives is one of a visible file beside it.
bool IsPlainName(std::string_view name);

}  // namespace lt2
