// Where the presets and samples that come with the program lie, and how paths in one are found.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace lt2 {

// The folder share/lt2 beside the executable or above it: in a build tree it links to the sources,
// after an installation it is PREFIX/share/lt2. NotFound says where it was looked for.
absl::StatusOr<std::string> ShareDirectory();
// ShareDirectory/presets.
absl::StatusOr<std::string> PresetDirectory();

struct Preset {
  std::string name, path;
  std::string summary;  // the comment on its first line
};
// Sorted by name.
absl::StatusOr<std::vector<Preset>> ListPresets();

// CONFIG of a command line: the path of a file, or of the preset of that name. NotFound names the
// nearest preset.
absl::StatusOr<std::string> FindConfigFile(const std::string& config);

// A path in a configuration file: as it is if absolute; else the first that exists of: in the
// file's folder, in the working directory, in ShareDirectory (what presets name), made absolute.
// One that exists nowhere comes back unchanged.
std::string ResolveInputPath(const std::string& path, const std::string& config_file);

}  // namespace lt2
