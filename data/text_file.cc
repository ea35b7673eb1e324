#include "data/text_file.h"

namespace lt2 {

std::vector<int64_t> DocumentStarts(std::string_view text) {
  std::vector<int64_t> starts;
  if (text.empty()) return starts;
  starts.push_back(0);
  bool content_seen = false, after_blank = false;
  for (size_t line = 0; line < text.size();) {
    const size_t newline = text.find('\n', line);
    const size_t end = newline == std::string_view::npos ? text.size() : newline + 1;
    const bool blank =
        text.substr(line, end - line).find_first_not_of(" \t\r\n") == std::string_view::npos;
    if (!blank && content_seen && after_blank) starts.push_back(static_cast<int64_t>(line));
    content_seen |= !blank;
    after_blank = blank;
    line = end;
  }
  return starts;
}

}  // namespace lt2
