// Choices that were measured once on a machine, in a file that the user's processes share.
//
// The choice decides the order of sums, so all ranks and all later runs must make the same one:
// whoever meets a new key measures while it holds the file's lock, the others look again and again.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "absl/status/statusor.h"

namespace lt2 {

// LT2_CACHE_DIR, else lt2 in XDG_CACHE_HOME, else ~/.cache/lt2. NotFound where none is set.
absl::StatusOr<std::string> CacheDirectory();

// One thread's view of a file. Keys and values are words without spaces or line ends. Lines that
// are damaged are told of and ignored; the next new choice writes the file without them.
class MeasuredChoices {
 public:
  explicit MeasuredChoices(std::string path) : path_(std::move(path)) {}

  // The value of `key`: the file's where `sound` accepts it, else what `measure` gives, which is
  // written unless it is empty: not measured. An error where the file cannot be locked or written:
  // nothing was chosen.
  absl::StatusOr<std::string> Choose(const std::string& key,
                                     const std::function<bool(const std::string&)>& sound,
                                     const std::function<std::string()>& measure);

 private:
  void Read();
  absl::Status Write() const;

  const std::string path_;
  std::map<std::string, std::string> values_;
};

}  // namespace lt2
