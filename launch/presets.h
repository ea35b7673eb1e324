// The presets and samples that come with the program, and how paths in a configuration are found.
//
// A preset is a file, presets/NAME.toml, or a shape with a choice of mixers: SHAPE-MIXERS is
// presets/shapes/SHAPE.toml with that line of presets/mixers.toml over its [model]. A shape may
// start from another one: like = "SHAPE".
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/config.h"

namespace lt2 {

// The folder share/lt2 beside the executable or above it: in a build tree it links to the sources,
// after an installation it is PREFIX/share/lt2. NotFound says where it was looked for.
absl::StatusOr<std::string> ShareDirectory();
// ShareDirectory/presets.
absl::StatusOr<std::string> PresetDirectory();

struct Preset {
  std::string name;
  std::string path;     // its file, or its shape's
  std::string summary;  // the comment on that file's first line, and what the mixers are
  ConfigTable over;     // of a shape: what stands over the file's [model]
};
// The files by name, then the shapes by name, each with its mixers in their order.
absl::StatusOr<std::vector<Preset>> ListPresets();

// The table of a preset, its source a path of the preset's name beside the others. NotFound names
// the nearest preset.
absl::StatusOr<ConfigTable> ReadPreset(const std::string& name);
// CONFIG of a command line: the table of a file, or of the preset of that name.
absl::StatusOr<ConfigTable> ReadConfig(const std::string& config);

// A path in a configuration file: as it is if absolute; else the first that exists of: in the
// file's folder, in the working directory, in ShareDirectory (what presets name), made absolute.
// One that exists nowhere comes back unchanged.
std::string ResolveInputPath(const std::string& path, const std::string& config_file);

}  // namespace lt2
