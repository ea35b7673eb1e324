#include "tools/verb.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <thread>

#include "absl/strings/str_join.h"
#include "core/config.h"
#include "core/log.h"
#include "core/strings.h"
#include "parallel/mpi_communicator.h"
#include "tools/exit.h"

namespace lt2 {

#define VERB(Name) Verb Name##Verb();
#include "tools/verbs.def"
#undef VERB

namespace {

std::string program = "lt2";  // as it was called, for examples

// CLI11's layout, with the default behind every description.
class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter() { column_width(34); }
  std::string make_option_opts(const CLI::Option* option) const override {
    const bool flag = option->get_expected_max() == 0;
    const bool many = option->get_expected_max() == CLI::detail::expected_max_vector_size;
    return flag ? "" : StrCat(" ", option->get_type_name(), many ? " ..." : "");
  }
  std::string make_option_desc(const CLI::Option* option) const override {
    std::string fallback = option->get_default_str();
    if (option->get_expected_max() == 0) fallback = "off";
    if (fallback.empty() || fallback == "[]" || fallback == "\"\"") fallback = "none";
    const bool help = option->get_name() == "--help";
    const std::string note = help                     ? ""
                             : option->get_required() ? " (required)"
                                                      : StrCat(" (default: ", fallback, ")");
    return StrCat(option->get_description(), note);
  }
};

std::string WithProgram(std::string text) {
  const std::string name = "{lt2}";
  for (size_t at; (at = text.find(name)) != std::string::npos;) {
    text.replace(at, name.size(), program);
  }
  return text;
}

std::string ExampleText(const std::string& example) {
  return example.empty() ? "" : StrCat("Example:\n  ", WithProgram(example), "\n");
}

// The app of the sub-verb that was typed, or the verb's own.
CLI::App* Deepest(CLI::App* app) {
  const std::vector<CLI::App*> chosen = app->get_subcommands();
  return chosen.empty() ? app : Deepest(chosen.front());
}

std::vector<std::string> FlagNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back(StrCat("--", name));
  }
  return names;
}

// Says what is wrong with the arguments, with the nearest flag or sub-verb.
std::string Explain(const CLI::ParseError& error, CLI::App& app) {
  CLI::App* at = Deepest(&app);
  std::vector<std::string> subverbs;
  for (const CLI::App* sub : at->get_subcommands({})) subverbs.push_back(sub->get_name());
  for (const std::string& word : app.remaining(true)) {
    const bool flag = word.starts_with("-");
    if (!flag && subverbs.empty()) return StrCat("unexpected argument '", word, "'");
    const std::string near =
        NearestName(word.substr(0, word.find('=')), flag ? FlagNames(*at) : subverbs);
    std::string hint = near.empty() ? "" : StrCat("; did you mean '", near, "'?");
    if (near.empty() && !flag) {
      for (const std::string& name : subverbs)
        StrAppend(&hint, hint.empty() ? "; there are " : ", ", name);
    }
    return StrCat("unknown ", flag ? "flag" : "verb", " '", word, "'", hint);
  }
  if (!subverbs.empty()) return StrCat("a verb is wanted: ", absl::StrJoin(subverbs, ", "));
  return error.what();
}

// Text of users need not be UTF-8.
void PrintJson(const nlohmann::json& result) {
  std::cout << result.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << std::endl;
}

// Of a rank that failed before it met the others: where rank 0 has failed too, it has ended them by
// now and has said why.
void PrintLate(const std::string& message) {
  std::this_thread::sleep_for(std::chrono::seconds(1));
  std::array<char, 256> host = {};
  gethostname(host.data(), host.size() - 1);
  std::cerr << "rank " << LaunchRank() << " (" << host.data() << "): error: " << message
            << std::endl;
}

int Finish(const absl::Status& status, VerbOutput& output) {
  const bool speaks = output.world ? output.world->rank() == 0 : LaunchRank() == 0;
  if (!status.ok()) {
    const std::string message(status.message());
    if (speaks) {
      // An agreed status names the rank itself.
      if (output.world) SetLogRank(0, 1, output.world->host());
      LogError(message);
    } else if (!output.world) {
      PrintLate(message);
    }
    output.exit_code = StatusToExitCode(status);
    output.result["error"] = message;
  }
  if (output.json && speaks) {
    output.result["exit"] = output.exit_code;
    PrintJson(output.result);
  }
  if (!std::cout.flush() && speaks && output.exit_code == kExitDone) {
    LogError("cannot write to standard output: what it was to hold is lost");
    output.exit_code = kExitFailed;
  }
  output.world.reset();
  return output.exit_code;
}

// "lt2 data tokenize", as far as sub-verbs were typed.
std::string TypedSoFar(CLI::App& app, const std::string& verb) {
  std::string text = StrCat(program, " ", verb);
  for (CLI::App* at = &app; !at->get_subcommands().empty();) {
    at = at->get_subcommands().front();
    StrAppend(&text, " ", at->get_name());
  }
  return text;
}

}  // namespace

const std::vector<Verb>& Verbs() {
  static const std::vector<Verb> verbs = {
#define VERB(Name) Name##Verb(),
#include "tools/verbs.def"
#undef VERB
  };
  return verbs;
}

CLI::App* AddSubverb(CLI::App& app, const std::string& name, const std::string& summary,
                     const std::string& example) {
  CLI::App* sub = app.add_subcommand(name, summary);
  sub->footer(ExampleText(example));
  app.require_subcommand(1);
  return sub;
}

int LaunchRank() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"}) {
    if (const char* value = std::getenv(name)) return std::atoi(value);
  }
  return 0;
}

void PrintUsageError(const std::string& message, bool json) {
  if (LaunchRank() != 0) {
    const char* programs = std::getenv("OMPI_NUM_APP_CTX");
    if (programs != nullptr && std::atoi(programs) > 1) PrintLate(message);
    return;
  }
  std::cerr << "error: " << message << std::endl;
  if (json) PrintJson({{"error", message}, {"exit", kExitBadInput}});
}

bool WantsJson(int argc, char** argv) {
  return std::any_of(argv, argv + argc,
                     [](const char* word) { return std::string_view(word) == "--json"; });
}

int RunVerb(const Verb& verb, int argc, char** argv) {
  program = argv[0];
  VerbOutput output;
  CLI::App app(verb.summary, StrCat("lt2 ", verb.name));
  app.formatter(std::make_shared<HelpFormatter>());
  app.option_defaults()->always_capture_default();
  app.set_help_flag("-h,--help", "this text");
  app.footer(ExampleText(verb.example));
  const VerbBody body = verb.add(app);
  const auto add_json = [&](CLI::App& to) {
    to.add_flag("--json", output.json, "the last line of standard output is one JSON object");
  };
  add_json(app);
  for (CLI::App* subverb : app.get_subcommands({})) add_json(*subverb);
  try {
    app.parse(argc - 1, argv + 1);
  } catch (const CLI::CallForHelp&) {
    std::cout << app.help();
    return kExitDone;
  } catch (const CLI::ParseError& error) {
    PrintUsageError(StrCat(Explain(error, app), "\nTry: ", TypedSoFar(app, verb.name), " --help"),
                    WantsJson(argc, argv));
    return kExitBadInput;
  }
  if (!verb.parallel) {
    if (LaunchRank() != 0) return kExitDone;
    if (const int processes = LaunchedProcesses(); processes > 1) {
      LogWarn(StrCat("lt2 ", verb.name, " runs in one process: of the ", processes,
                     " that were started only rank 0 works"));
    }
  }
  return Finish(body(output), output);
}

}  // namespace lt2
