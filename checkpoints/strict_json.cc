#include "checkpoints/strict_json.h"

#include <set>
#include <stdexcept>
#include <string>
#include <vector>

namespace lt2 {

using Json = nlohmann::json;

Json ParseStrictly(std::string_view text) {
  constexpr int kDeepest = 32;
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  return Json::parse(text, [&](int depth, Json::parse_event_t event, Json& value) {
    if (depth > kDeepest) throw std::runtime_error("values lie too deep in each other");
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(value).second) {
      throw std::runtime_error(value.dump() + " is there twice");
    }
    return true;
  });
}

uint64_t UnsignedFromJson(const Json& json) {
  if (!json.is_number_unsigned()) throw std::runtime_error("a whole number is wanted");
  return json;
}

int64_t CountFromJson(const Json& json) {
  const uint64_t count = UnsignedFromJson(json);
  if (count > uint64_t{INT64_MAX}) throw std::runtime_error("a number is too large");
  return static_cast<int64_t>(count);
}

bool IsPlainName(std::string_view name) {
  return !name.empty() && !name.starts_with('.') &&
         name.find_first_of(std::string_view("/\0", 2)) == std::string_view::npos;
}

}  // namespace lt2
