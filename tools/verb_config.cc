// lt2 config: prints, checks and lists configurations.
#include <filesystem>
#include <iostream>
#include <memory>

#include "absl/strings/str_format.h"
#include "core/status_macros.h"
#include "core/strings.h"
#include "data/tokenizer.h"
#include "launch/presets.h"
#include "model/language_model.h"
#include "tools/flags.h"
#include "tools/verb.h"

namespace lt2 {
namespace {

// Of the whole model: counted from their declarations, which take no memory.
int64_t Parameters(const RunConfig& config) {
  return LanguageModel(config.model).params().elements();
}

std::string Millions(int64_t count) {
  return absl::StrFormat("%.1f M", static_cast<double>(count) / 1e6);
}

absl::Status Show(const ConfigFlags& flags, VerbOutput& output) {
  ASSIGN_OR_RETURN(const RunConfig config, flags.Load());
  output.result["toml"] = config.ToToml();
  if (!output.json) std::cout << config.ToToml();
  return absl::OkStatus();
}

// What the reading of a configuration leaves open: whether its inputs are there.
absl::Status CheckInputs(const RunConfig& config) {
  std::vector<std::string> paths;
  for (const DataConfig::Train& train : config.data.train) paths.push_back(train.path);
  if (config.data.valid && !config.data.valid->empty()) paths.push_back(*config.data.valid);
  std::string missing;
  for (const std::string& path : paths) {
    std::error_code error;
    if (!std::filesystem::exists(path, error)) {
      StrAppend(&missing, missing.empty() ? "" : "\n", "data: ", path,
                ": no such file or folder, neither beside the configuration nor in the working "
                "directory");
    }
  }
  return missing.empty() ? absl::OkStatus() : absl::NotFoundError(missing);
}

absl::Status Check(const ConfigFlags& flags, int ranks, VerbOutput& output) {
  ASSIGN_OR_RETURN(const RunConfig config, flags.Load());
  ASSIGN_OR_RETURN(const Mesh mesh, MeshFor(config, ranks));
  RETURN_IF_ERROR(MakeTokenizer(config.data.tokenizer, config.model.vocab).status());
  RETURN_IF_ERROR(CheckInputs(config));
  const int64_t micro_batches =
      config.batch.tokens / (config.data.sequence * config.batch.micro_batch * mesh.dp);
  output.result = {{"mesh", mesh.ToString()},
                   {"tokens_per_step", config.batch.tokens},
                   {"micro_batches", micro_batches},
                   {"params", Parameters(config)},
                   {"steps", config.total_steps()},
                   {"tokens", config.schedule.total.Tokens(config.batch.tokens)}};
  if (!output.json) {
    std::cout << StrCat(flags.config, " is sound: ", Millions(Parameters(config)), " parameters; ",
                        config.total_steps(), " steps of ", config.batch.tokens, " tokens; on ",
                        ranks, ranks == 1 ? " rank (" : " ranks (", mesh.ToString(), ") ",
                        micro_batches, micro_batches == 1 ? " micro-batch" : " micro-batches",
                        " a step\n");
  }
  return absl::OkStatus();
}

absl::Status List(VerbOutput& output) {
  ASSIGN_OR_RETURN(const std::vector<Preset> presets, ListPresets());
  output.result["presets"] = nlohmann::json::array();
  for (const Preset& preset : presets) {
    ASSIGN_OR_RETURN(const RunConfig config, LoadRunConfig(preset.name, {}));
    const int64_t params = Parameters(config);
    output.result["presets"].push_back({{"name", preset.name},
                                        {"path", preset.path},
                                        {"summary", preset.summary},
                                        {"params", params}});
    if (!output.json) {
      std::cout << absl::StrFormat("%-22s %10s  %s\n", preset.name, Millions(params),
                                   preset.summary);
    }
  }
  return absl::OkStatus();
}

}  // namespace

Verb ConfigVerb() {
  return {.name = "config",
          .summary = "Prints, checks and lists configurations.",
          .example = "{lt2} config show lt2-tiny",
          .add = [](CLI::App& app) -> VerbBody {
            auto flags = std::make_shared<ConfigFlags>();
            auto ranks = std::make_shared<int>(1);
            CLI::App* show = AddSubverb(
                app, "show",
                "Prints the resolved configuration: presets merged, every default written out.",
                "{lt2} config show lt2-tiny --set model.loops=4");
            AddConfigFlags(*show, flags.get());
            CLI::App* check = AddSubverb(
                app, "check", "Checks all that can be checked before memory is allocated.",
                "{lt2} config check lt2-tiny --ranks 2");
            AddConfigFlags(*check, flags.get());
            check->add_option("--ranks", *ranks, "how many ranks it is to run on")
                ->check(WholeNumber(1, 1 << 20));
            CLI::App* presets =
                AddSubverb(app, "presets", "Lists the presets, each with its parameters.",
                           "{lt2} config presets");
            return [=](VerbOutput& output) {
              if (presets->parsed()) return List(output);
              return show->parsed() ? Show(*flags, output) : Check(*flags, *ranks, output);
            };
          }};
}

}  // namespace lt2
