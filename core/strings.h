// absl::StrCat that also takes std::string_view: Debian's abseil has a string_view of its own.
#pragma once

#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace lt2 {

inline absl::string_view Piece(std::string_view text) { return {text.data(), text.size()}; }
template <class T>
const T& Piece(const T& value) {
  return value;
}
inline absl::string_view Piece(const std::string& text) { return text; }
template <size_t n>
absl::string_view Piece(const char (&text)[n]) {
  return text;
}

template <class... Args>
std::string StrCat(const Args&... args) {
  return absl::StrCat(Piece(args)...);
}

template <class... Args>
void StrAppend(std::string* text, const Args&... args) {
  absl::StrAppend(text, Piece(args)...);
}

}  // namespace lt2
