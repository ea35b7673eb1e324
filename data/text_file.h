// A plain text as documents: the parts that blank lines separate.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace lt2 {

// Where each document begins, in bytes. A blank line holds nothing but spaces, tabs and carriage
// returns; a document is followed by its blank lines, which belong to it, so that the documents one
// after another are the text again. Blank lines at the very beginning belong to the first document.
// An empty text has no documents.
std::vector<int64_t> DocumentStarts(std::string_view text);

}  // namespace lt2
