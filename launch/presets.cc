#include "launch/presets.h"

#include <filesystem>
#include <system_error>

#include "core/config.h"
#include "core/file.h"
#include "core/status_macros.h"
#include "core/strings.h"

namespace lt2 {
namespace {

namespace fs = std::filesystem;

// "# A small model." -> "A small model."
std::string FirstComment(const std::string& text) {
  const std::string line = text.substr(0, text.find('\n'));
  const size_t start = line.find_first_not_of("# ");
  return line.starts_with("#") && start != std::string::npos ? line.substr(start) : "";
}

constexpr char kMixers[] = "mixers";  // the file of what the layers of shapes may be
constexpr char kShapes[] = "shapes";

// A preset for each file NAME.toml there, by name.
absl::StatusOr<std::vector<Preset>> FilesIn(const std::string& directory) {
  ASSIGN_OR_RETURN(const std::vector<std::string> files, FileSystem::Get().List(directory));
  std::vector<Preset> presets;
  for (const std::string& file : files) {
    if (!file.ends_with(".toml")) continue;
    Preset preset{.name = file.substr(0, file.size() - 5), .path = JoinPath(directory, file)};
    ASSIGN_OR_RETURN(const std::string text, FileSystem::Get().ReadFile(preset.path));
    preset.summary = FirstComment(text);
    presets.push_back(std::move(preset));
  }
  return presets;
}

absl::StatusOr<ConfigTable> TableOf(const Preset& preset) {
  ASSIGN_OR_RETURN(const std::string directory, PresetDirectory());
  ASSIGN_OR_RETURN(ConfigTable table,
                   ConfigTable::Parse("", JoinPath(directory, StrCat(preset.name, ".toml"))));
  table.SetTable("model", preset.over);
  const std::string shapes = JoinPath(directory, kShapes);
  std::string path = preset.path;
  for (std::string like; !path.empty(); like.clear()) {
    ASSIGN_OR_RETURN(const ConfigTable file, ConfigTable::ParseFile(path));
    file.Read("like", &like);
    table.MergeDefaults(file);
    path = like.empty() ? "" : JoinPath(shapes, StrCat(like, ".toml"));
  }
  table.Accept("like");
  return table;
}

}  // namespace

absl::StatusOr<std::string> ShareDirectory() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  fs::path folder = program.parent_path();
  for (int up = 0; up < 4 && !folder.empty(); ++up) {
    const fs::path share = folder / "share" / "lt2";
    if (fs::is_directory(share / "presets", error)) return share.string();
    if (folder == folder.parent_path()) break;
    folder = folder.parent_path();
  }
  return absl::NotFoundError(StrCat("no share/lt2/presets beside ", program.parent_path().string(),
                                    " or in the folders above it: install the program again"));
}

absl::StatusOr<std::string> PresetDirectory() {
  ASSIGN_OR_RETURN(std::string share, ShareDirectory());
  return JoinPath(share, "presets");
}

absl::StatusOr<std::vector<Preset>> ListPresets() {
  ASSIGN_OR_RETURN(std::string directory, PresetDirectory());
  ASSIGN_OR_RETURN(std::vector<Preset> presets, FilesIn(directory));
  std::erase_if(presets, [](const Preset& preset) { return preset.name == kMixers; });
  ASSIGN_OR_RETURN(const std::vector<Preset> shapes, FilesIn(JoinPath(directory, kShapes)));
  ASSIGN_OR_RETURN(const ConfigTable mixers,
                   ConfigTable::ParseFile(JoinPath(directory, StrCat(kMixers, ".toml"))));
  struct Line {
    std::string name, summary;
  };
  std::vector<Line> lines;
  const std::vector<ConfigTable> tables = mixers.Tables("mixers");
  for (const ConfigTable& table : tables) {
    Line& line = lines.emplace_back();
    table.Read("name", &line.name);
    table.Read("summary", &line.summary);
    table.Accept("model");  // judged where it is used
  }
  RETURN_IF_ERROR(mixers.Finish());
  for (const Preset& shape : shapes) {
    for (size_t i = 0; i < lines.size(); ++i) {
      presets.push_back({.name = StrCat(shape.name, "-", lines[i].name),
                         .path = shape.path,
                         .summary = StrCat(shape.summary, ": ", lines[i].summary),
                         .over = tables[i].Table("model")});
    }
  }
  return presets;
}

absl::StatusOr<ConfigTable> ReadPreset(const std::string& name) {
  ASSIGN_OR_RETURN(const std::vector<Preset> presets, ListPresets());
  std::vector<std::string> names;
  for (const Preset& preset : presets) {
    if (preset.name == name) return TableOf(preset);
    names.push_back(preset.name);
  }
  const std::string near = NearestName(name, names);
  return absl::NotFoundError(
      StrCat("no preset of that name", near.empty() ? "; `lt2 config presets` lists them"
                                                    : StrCat("; did you mean '", near, "'?")));
}

absl::StatusOr<ConfigTable> ReadConfig(const std::string& config) {
  FileSystem& files = FileSystem::Get();
  if (files.Exists(config) && !files.IsDirectory(config)) {
    return ConfigTable::ParseFile(config);
  }
  absl::StatusOr<ConfigTable> preset = ReadPreset(config);
  if (!absl::IsNotFound(preset.status())) return preset;
  return absl::NotFoundError(StrCat(config, ": no such file and ", preset.status().message()));
}

std::string ResolveInputPath(const std::string& path, const std::string& config_file) {
  if (path.empty() || fs::path(path).is_absolute()) return path;
  std::error_code error;
  std::vector<fs::path> folders = {fs::path(config_file).parent_path(), fs::current_path(error)};
  if (auto share = ShareDirectory(); share.ok()) folders.emplace_back(*share);
  for (const fs::path& folder : folders) {
    const fs::path candidate = folder / path;
    if (fs::exists(candidate, error)) return fs::weakly_canonical(candidate, error).string();
  }
  return path;
}

}  // namespace lt2
